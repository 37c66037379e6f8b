"""From a real device to a scenario: measure how long batches take there, fit the linear model, check it by driving."""
