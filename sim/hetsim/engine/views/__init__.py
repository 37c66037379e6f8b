"""What a policy may ask."""
