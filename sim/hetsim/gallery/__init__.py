"""The gallery: published results, run here and compared with their authors'.

An entry is a scenario, and a folder with the expected results (`expected.yaml`), the authors' figures, their inputs and
the notice of their license.  Shipped entries are in `scenarios/hetsim_scenarios/published`; your own entries work, too.
"""
