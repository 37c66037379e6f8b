"""Free resources: devices, nodes, limits of partitions, and indexes over them."""
