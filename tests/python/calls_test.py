"""Two ranks of one job: calls, failures, and what a program does to a team without meaning to."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import gdx
import numpy as np
from gdx import _gdx


class OnlyDlpack:
    """Memory of an array, as a tensor of another library shows it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Calls(unittest.TestCase):
    def setUp(self) -> None:
        self.team = gdx.Team(heap_bytes=1 << 20)
        self.rank, self.peer = self.team.rank, 1 - self.team.rank
        self.signals = self.team.array(4, "u8")

    def tearDown(self) -> None:
        self.team.close()

    def assert_status(self, status: gdx.Status, rank: int | None, error: gdx.Error) -> None:
        self.assertEqual((error.status, error.rank), (status, rank), error)

    def test_put_signal_and_wait(self) -> None:
        x = self.team.array((3, 50), "f4")
        self.assertEqual((x.shape, x.dtype, float(x.sum())), ((3, 50), np.dtype("f4"), 0.0))
        own = self.team.array((3, 50), np.float32)
        own[:] = self.rank + 1
        self.team.put(x[0], own[0], self.peer)
        self.team.put_signal(x[1:], own[1:], self.signals[:1], 2, self.peer, "add")
        self.team.wait(self.signals[:1], ">=", 2, self.peer)
        self.assertTrue((x == self.peer + 1).all(), x)
        self.team.signal(self.signals[1:2], 7, self.peer)
        self.team.wait(self.signals[1:2], "==", 7)
        self.team.quiet(self.peer)

    def test_subteam_numbers_its_ranks_anew(self) -> None:
        with self.team.subteam([1, 0]) as part:
            self.assertEqual((part.rank, part.size), (self.peer, 2))
            x, word = part.array(8, "f4"), part.array(1, "u8")
            own = part.array(8, "f4")
            own[:] = self.rank + 1
            part.put_signal(x, own, word, 5, self.rank)
            part.wait(word, "==", 5, self.rank)
            self.assertTrue((x == self.peer + 1).all(), x)
            part.barrier()
        with self.assertRaises(gdx.Error) as raised:
            self.team.subteam([self.peer])
        self.assert_status(gdx.Status.INVALID_ARGUMENT, None, raised.exception)

    def test_part_ends_with_its_team(self) -> None:
        part = self.team.subteam([0, 1])
        del self.team
        part.barrier()
        del part
        self.team = gdx.Team(heap_bytes=1 << 20)
        part = self.team.subteam([0, 1])
        x = part.array(8, "f4")
        self.team.close()
        calls: list[Callable[[], None]] = [
            lambda: part.put(x, x, self.peer),
            part.barrier,
            part.quiet,
            lambda: part.synchronize(1),
        ]
        for call in calls:
            with self.assertRaisesRegex(gdx.Error, "closed") as closed:
                call()
            self.assert_status(gdx.Status.INVALID_ARGUMENT, None, closed.exception)
        part.close()

    def test_memory_of_the_team_by_buffer_and_dlpack(self) -> None:
        x = self.team.array(6, "i8")
        own = self.team.array(6, "i8")
        own[:] = self.rank + 1
        buffer: Any = x[:3]
        tensor: Any = OnlyDlpack(own[:3])
        buffer = memoryview(buffer)
        self.team.put(buffer, tensor, self.peer)
        self.team.put_signal(x[3:], own[3:], self.signals[:1], 1, self.peer)
        self.team.wait(self.signals[:1], "==", 1, self.peer)
        self.assertEqual(x.tolist(), [self.peer + 1] * 6)

    def test_get(self) -> None:
        x = self.team.array(100, "i8")
        x[:] = self.rank
        self.team.barrier()
        taken = self.team.array(100, "i8")
        self.team.get(taken[50:], x[:50], self.peer)
        self.team.quiet()
        self.assertEqual((taken[:50].tolist(), taken[50:].tolist()), ([0] * 50, [self.peer] * 50))
        self.team.barrier()
        self.team.free(taken)

    def test_atomics(self) -> None:
        old = self.team.array(2, "u8")
        for _ in range(10):
            self.team.fetch_add(old[:1], self.signals[:1], 3, 0)
        self.team.quiet(0)
        self.team.barrier()
        if self.rank == 0:
            self.assertEqual(self.signals[0], 60)
        # Both ranks swap, and one of them finds the word as it was.
        self.team.compare_swap(old[1:], self.signals[1:2], 0, self.rank + 1, 1)
        self.team.quiet()
        winner = self.rank if old[1] == 0 else self.peer
        self.team.barrier()
        self.team.get(old[:1], self.signals[1:2], 1)
        self.team.quiet()
        self.assertEqual(old[0], winner + 1)
        with self.assertRaisesRegex(ValueError, "one element"):
            self.team.fetch_add(old, self.signals[:1], 1, 0)
        self.team.barrier()

    def test_refusals_carry_status_and_rank(self) -> None:
        x = self.team.array(8, "f4")
        with self.assertRaisesRegex(gdx.Error, "rank 7") as no_such:
            self.team.put(x, x, 7)
        self.assert_status(gdx.Status.INVALID_ARGUMENT, 7, no_such.exception)
        with self.assertRaisesRegex(gdx.Error, "window|heap") as foreign:
            self.team.put(x, np.zeros(8, "f4"), self.peer)
        self.assert_status(gdx.Status.INVALID_ARGUMENT, self.peer, foreign.exception)
        again = pickle.loads(pickle.dumps(foreign.exception))
        self.assert_status(gdx.Status.INVALID_ARGUMENT, self.peer, again)
        with self.assertRaisesRegex(ValueError, "different lengths"):
            self.team.put(x[1:], x, self.peer)
        with self.assertRaisesRegex(ValueError, "one element"):
            self.team.signal(self.signals, 1, self.peer)
        with self.assertRaisesRegex(ValueError, '"set" or "add"'):
            self.team.signal(self.signals[:1], 1, self.peer, "sub")
        with self.assertRaisesRegex(ValueError, "compare: use"):
            self.team.wait(self.signals[:1], "=>", 1)
        with self.assertRaises(TypeError):
            self.team.put(x[::2], x[::2], self.peer)
        with self.assertRaisesRegex(TypeError, "objects"):
            self.team.array(1, object)
        with self.assertRaises(gdx.Error) as too_much:
            self.team.array(2 << 20, "u1")
        self.assert_status(gdx.Status.NO_MEMORY, None, too_much.exception)

    def test_ctrl_c_ends_a_wait_and_leaves_the_team(self) -> None:
        ended = threading.Event()
        late: list[bool] = []

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            late.append(not ended.wait(60))
            self.team.signal(self.signals[1:2], 1, self.rank)

        thread = threading.Timer(0.2, interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            self.team.wait(self.signals[1:2], "==", 1)
        ended.set()
        thread.join()
        self.assertEqual(late, [False])
        self.team.barrier()
        self.team.signal(self.signals[:1], 1, self.peer)
        self.team.wait(self.signals[:1], "==", 1, self.peer)

    def test_ctrl_c_where_ranks_of_torchrun_meet(self) -> None:
        def exchange(text: str, timeout_s: float) -> str:
            raise KeyboardInterrupt

        launcher = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        with mock.patch.dict(os.environ, launcher):
            for name in ("GDX_RANK", "GDX_WORLD_SIZE", "GDX_ROOT"):
                os.environ.pop(name, None)
            with self.assertRaises(KeyboardInterrupt):
                _gdx.Team(1 << 20, exchange=exchange)

    def test_signal_handler_runs_in_a_wait_and_makes_no_call(self) -> None:
        refused: list[gdx.Error] = []

        def handler(number: int, frame: object) -> None:
            try:
                self.team.signal(self.signals[:1], 1, self.rank)
            except gdx.Error as error:
                refused.append(error)
            thread = threading.Thread(target=self.team.signal, args=(self.signals[:1], 1, self.rank))
            thread.start()
            thread.join()

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        self.team.wait(self.signals[:1], "==", 1)
        signal.signal(signal.SIGALRM, before)
        self.assert_status(gdx.Status.BUSY, self.rank, refused[0])

    def test_close_is_refused_while_a_thread_is_in_a_call(self) -> None:
        for value, of in enumerate((self.team, self.team.subteam([0, 1])), 1):
            thread = threading.Thread(target=of.wait, args=(self.signals[:1], "==", value))
            thread.start()
            while thread.is_alive():
                try:
                    self.team.close()
                    self.fail("closed below a thread's wait")
                except gdx.Error as error:
                    self.assert_status(gdx.Status.BUSY, None, error)
                self.team.signal(self.signals[:1], value, self.rank)
                thread.join()

    def test_child_by_fork_is_refused_and_ends_nothing(self) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.team.signal(self.signals[:1], 1, self.peer)
            except gdx.Error as error:
                status = 0 if error.status == gdx.Status.INVALID_ARGUMENT else 2
            del self.team
            os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.team.signal(self.signals[:1], 1, self.peer)
        self.team.wait(self.signals[:1], "==", 1, self.peer)

    def test_arrays_outlive_a_team_that_is_dropped(self) -> None:
        x = self.team.array(100, "i8")
        x[:] = 5
        del self.team
        self.team = gdx.Team(heap_bytes=1 << 20)
        x += 1
        self.assertEqual(x.tolist(), [6] * 100)

    def test_second_interpreter_is_refused(self) -> None:
        try:
            interpreters: Any = importlib.import_module("_interpreters")
        except ImportError:  # before Python 3.13
            interpreters = importlib.import_module("_xxsubinterpreters")
        reading, writing = os.pipe()
        code = f"import gdx, os\ntry: gdx.Team\nexcept gdx.Error as error: os.write({writing}, str(error).encode())"
        second = interpreters.create()
        interpreters.run_string(second, code)
        interpreters.destroy(second)
        os.close(writing)
        with os.fdopen(reading) as told:
            self.assertRegex(told.read(), "not the first interpreter")
        self.team.signal(self.signals[:1], 1, self.rank)

    def test_stream_is_refused_without_a_driver_of_cuda(self) -> None:
        with self.assertRaisesRegex(gdx.Error, "no CUDA driver") as refused:
            self.team.signal(self.signals[:1], 1, self.peer, stream=1)
        self.assert_status(gdx.Status.UNSUPPORTED, None, refused.exception)

    def test_closed_team_refuses_and_leaves_arrays(self) -> None:
        with self.team as team:
            x = team.array(10, "i8")
        x[:] = 1
        with self.assertRaisesRegex(gdx.Error, "closed"):
            self.team.put(x, x, self.peer)
        with self.assertRaisesRegex(gdx.Error, "closed"):
            self.team.barrier()

    def test_status_has_every_value_of_the_library(self) -> None:
        with open(os.environ["GDX_STATUS_HEADER"], encoding="utf-8") as header:
            values = re.findall(r"^  k\w+ = (0x\w+),", header.read(), re.MULTILINE)
        self.assertEqual([status.value for status in gdx.Status], [int(value, 16) for value in values])


if __name__ == "__main__":
    unittest.main()
