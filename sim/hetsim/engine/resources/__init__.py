"""What a cluster has free: devices, nodes, limits of partitions, and the indexes over them."""
