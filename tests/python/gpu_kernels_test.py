"""Two ranks of one job, whose kernels run on a GPU and are launched by cuda.core."""

from __future__ import annotations

import importlib
import os
from typing import Any

import gdx
import numpy as np

cuda: Any = importlib.import_module("cuda.core")
device = cuda.Device(0)
device.set_current()
stream = device.create_stream()
kernel = cuda.ObjectCode.from_cubin(os.environ["GDX_TEST_CUBIN"]).get_kernel("send_right")
with gdx.Team(heap_bytes=1 << 20, gpu=0) as team:
    to, x, arrived = team.array(1000), team.array(1000), team.array(1, "u8")
    status = team.array(1, "u4")
    x[:] = team.rank + 1
    team.barrier()
    addresses = [array.ctypes.data for array in (to, x, arrived, status)]
    cuda.launch(stream, cuda.LaunchConfig(grid=1, block=1), kernel, team.handle, *addresses[:2], x.size, *addresses[2:])
    stream.sync()
    assert status[0] == 0, gdx.Status(status[0])
    assert np.all(to == (2 if team.rank == 0 else 1)), to
    team.barrier()
print("a kernel of cuda.core put and waited")
