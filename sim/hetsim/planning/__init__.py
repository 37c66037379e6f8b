"""Plans of static policies, pipelines and parallel training: `hetsim plan`."""
