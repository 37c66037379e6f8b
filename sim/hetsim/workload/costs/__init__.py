"""Cost models: figures of a network and a device, or measurements, to seconds."""
