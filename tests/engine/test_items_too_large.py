"""A task whose data are larger than the memory of its GPU: the message says which item and which GPU."""

from __future__ import annotations

import pytest
from machines import Job, gpu_mode, simulate

from hetsim.errors import PolicyError
from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.tasks import Item

SMALL, LARGE = DeviceType("small", memory=4_000), DeviceType("large", memory=9_000)


@pytest.mark.parametrize(("reads", "gpu_memory", "message"), [
    ((0,), 0, "fits nowhere: the item big of the task has 8,000 bytes, and a GPU of type small has 4,000 (`memory`)"),
    ((1, 2), 0, "fits nowhere: the 2 items of the task have 5,000 bytes in total, and a GPU of type small has "
                "4,000 (`memory`)"),
    ((2,), 2_000, "fits nowhere: the item medium of the task has 3,000 bytes, the task itself needs 2,000, and "
                  "a GPU of type small "
                  "has 4,000 (`memory`)"),
])  # fmt: skip
def test_data_that_no_gpu_has_room_for(reads, gpu_memory, message):
    items = [Item("big", 8_000), Item("little", 2_000), Item("medium", 3_000)]
    job = Job([gpu_mode(SMALL, gpu_memory=gpu_memory)], [1.0], reads=reads)
    with pytest.raises(PolicyError) as caught:
        simulate(NodeSpec(accelerators=((SMALL, 1),)), [job], None, items)
    assert message in str(caught.value) and "would fit" not in str(caught.value)


def test_data_that_fill_the_memory_or_fit_into_another_type_run():
    items = [Item("exact", 4_000), Item("big", 8_000)]
    spec = NodeSpec(accelerators=((SMALL, 1), (LARGE, 1)))
    jobs = [Job([gpu_mode(SMALL)], [1.0], reads=(0,)), Job([gpu_mode(LARGE)], [1.0], reads=(1,))]
    assert simulate(spec, jobs, None, items).finish == pytest.approx([1.0, 1.0])
