"""Cost models: from figures of a network and a device, or from measurements, to seconds."""
