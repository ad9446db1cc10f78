"""Two ranks of one job, whose calls are made on streams of the fake CUDA driver, and a team for kernels of its GPU.

The fake runs what is on a stream when the stream is asked, as late as a driver may.
"""

from __future__ import annotations

import ctypes
import unittest
from typing import Any

import gdx
import numpy as np

INVALID_HANDLE = 0x77


class Driver:
    """The driver, and a stream of device 0."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: object) -> None:
        result = self.library[name](*arguments)
        assert result == 0, f"{name}: {result}"

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        assert made.value is not None
        return made.value


class Streams(unittest.TestCase):
    driver: Driver

    @classmethod
    def setUpClass(cls) -> None:
        cls.driver = Driver()

    def setUp(self) -> None:
        self.stream = self.driver.stream()
        self.team = gdx.Team(heap_bytes=1 << 20)
        self.peer = 1 - self.team.rank
        self.signals = self.team.array(4, "u8")

    def tearDown(self) -> None:
        self.team.close()

    def test_calls_are_made_in_the_streams_turn(self) -> None:
        x, own = self.team.array(100, "i8"), self.team.array(100, "i8")
        self.team.put(x[:50], own[:50], self.peer, stream=self.stream)
        self.team.put_signal(x[50:], own[50:], self.signals[:1], 1, self.peer, "add", stream=self.stream)
        self.team.wait(self.signals[:1], ">=", 1, self.peer, stream=self.stream)
        self.team.barrier()
        self.assertEqual((int(x.sum()), int(self.signals[0])), (0, 0))
        own[:] = self.team.rank + 1
        self.team.barrier()
        self.team.synchronize(self.stream)
        self.assertEqual(x.tolist(), [self.peer + 1] * 100)

    def test_every_call_takes_a_stream(self) -> None:
        on: Any = {"stream": self.stream}
        got = self.team.array(3, "u8")
        self.team.signal(self.signals[:1], 1 + self.team.rank, self.peer, **on)
        self.team.barrier(**on)
        self.team.get(got[:1], self.signals[:1], self.peer, **on)
        self.team.fetch_add(got[1:2], self.signals[1:2], 3, 0, **on)
        self.team.quiet(0, **on)
        self.team.barrier(**on)
        self.team.compare_swap(got[2:], self.signals[1:2], 6, 9, 0, **on)
        self.team.quiet(**on)
        self.team.synchronize(self.stream)
        self.team.barrier()
        self.assertEqual(got[0], self.team.rank + 1)
        self.assertIn(got[1], (0, 3))
        self.assertIn(got[2], (6, 9))
        if self.team.rank == 0:
            self.assertEqual(self.signals[1], 9)

    def test_failure_is_kept_for_synchronize(self) -> None:
        self.team.put(self.signals, np.zeros(4, "u8"), self.peer, stream=self.stream)
        self.team.signal(self.signals[:1], 1, self.team.rank, stream=self.stream)
        with self.assertRaisesRegex(gdx.Error, "window|heap") as failed:
            self.team.synchronize(self.stream)
        self.assertEqual((failed.exception.status, failed.exception.rank), (gdx.Status.INVALID_ARGUMENT, self.peer))
        self.assertEqual(self.signals[0], 0)
        self.team.signal(self.signals[:1], 1, self.team.rank, stream=self.stream)
        self.team.synchronize(self.stream)
        self.assertEqual(self.signals[0], 1)
        with self.assertRaisesRegex(gdx.Error, "no stream of CUDA"):
            self.team.quiet(stream=INVALID_HANDLE)
        with self.assertRaisesRegex(gdx.Error, "no stream of CUDA"):
            self.team.synchronize(INVALID_HANDLE)

    def test_stream_that_is_captured_is_refused(self) -> None:
        self.driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), 0)
        with self.assertRaisesRegex(gdx.Error, "captured") as refused:
            self.team.signal(self.signals[:1], 1, self.team.rank, stream=self.stream)
        self.assertEqual(refused.exception.status, gdx.Status.UNSUPPORTED)

    def test_error_of_the_driver_ends_the_calls_that_wait(self) -> None:
        self.team.signal(self.signals[:1], 1, self.team.rank, stream=self.stream)
        self.driver.call("gdx_fake_cuda_lose", ctypes.c_void_p(self.stream))
        with self.assertRaisesRegex(gdx.Error, "error 719"):
            self.team.synchronize(self.stream)
        self.team.close()

    def test_part_is_dropped_before_its_stream_and_the_team_goes_on(self) -> None:
        part = self.team.subteam([0, 1])
        part.signal(self.signals[:1], 1, part.rank, stream=self.stream)
        with self.assertRaisesRegex(gdx.Error, "a part of this team") as busy:
            self.team.close()
        self.assertEqual(busy.exception.status, gdx.Status.BUSY)
        del part
        self.driver.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        self.assertEqual(self.signals[0], 0)
        self.team.barrier()

    def test_team_that_ends_before_its_stream(self) -> None:
        self.team.signal(self.signals[:1], 1, self.team.rank, stream=self.stream)
        with self.assertRaises(gdx.Error) as busy:
            self.team.close()
        self.assertEqual(busy.exception.status, gdx.Status.BUSY)
        del self.team
        self.driver.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        self.assertEqual(self.signals[0], 0)
        self.team = gdx.Team(heap_bytes=1 << 20)


class OfGpu(unittest.TestCase):
    def test_kernels_of_a_gpu_have_the_team_to_themselves(self) -> None:
        with gdx.Team(heap_bytes=1 << 20, gpu=0) as team:
            x = team.array(4, "u8")
            # Layout, rank and size begin the handle.
            _, rank, size = (ctypes.c_uint32 * 3).from_address(team.handle)
            self.assertEqual((rank, size), (team.rank, team.size))
            with self.assertRaisesRegex(gdx.Error, "GPU 0") as refused:
                team.put(x, x, 1 - team.rank)
            self.assertEqual(refused.exception.status, gdx.Status.UNSUPPORTED)
            team.barrier()


if __name__ == "__main__":
    unittest.main()
