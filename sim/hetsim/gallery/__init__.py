"""The gallery: published results, run here and compared with their authors'.

An entry is a scenario, and a folder with what is expected of it (`expected.yaml`), the authors' figures, their inputs
and the notice of their license.  Entries that ship lie in `scenarios/hetsim_scenarios/published`; any other
`expected.yaml` works alike.
"""
