"""Pipeline stages: partitions of a network, and schedules of micro-batches."""
