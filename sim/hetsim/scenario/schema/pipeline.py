"""`pipeline:` of an entry: a measured network in stages over the devices."""

from hetsim.model.units import Degree, ExistingFile, Flag
from hetsim.scenario.fields import Model, SomeNames


class PipelineSpec(Model):
    """A measured network, cut into stages over devices, with items to stream."""

    profile: ExistingFile
    """Measured layers, as `hetsim plan partition` reads them, relative to the scenario."""
    devices: SomeNames | None = None
    """Types or kinds of device that take stages; all accelerators with times in the profile unless given."""
    items: Degree = 1
    """Items that each arrival brings: a request, or micro-batches of a training job."""
    training: Flag = False
    """Whether items go forward and backward, gradients the way of the activations."""
    replication: Flag = True
    """Whether a stage may be on several devices, which take items in turn."""
