"""Views: the questions that a policy may ask."""
