"""Cost models: times of neural networks from device peak rates or measurements."""
