"""`hetsim plan`: plans of static policies, of pipelines and of parallel training."""
