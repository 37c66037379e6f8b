"""Free resources: devices, nodes, partition limits, and where modes fit."""
