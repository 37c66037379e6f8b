"""Free resources: devices, nodes, partition limits, and indexes of free places."""
