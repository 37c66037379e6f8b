"""Stages of a pipeline: cuts of a network, and slots of micro-batches."""
