"""Cost models of neural networks: seconds by device figures or by measurements."""
