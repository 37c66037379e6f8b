"""From a real device to a scenario: measure batches, fit a model, check it."""
