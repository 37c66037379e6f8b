"""Building: from a validated scenario to the input of one run."""
