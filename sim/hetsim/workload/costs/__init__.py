"""Cost models: seconds from network and device figures, or from measurements."""
