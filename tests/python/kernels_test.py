"""Two ranks of one job, which launch the kernels of kernels.cu by their names."""

from __future__ import annotations

import os
import signal
import threading
import unittest
from pathlib import Path
from typing import Any

import gdx
import numpy as np

KERNELS = Path(os.environ["GDX_TEST_KERNELS"])


class Launches(unittest.TestCase):
    def setUp(self) -> None:
        self.team = gdx.Team(heap_bytes=1 << 20)
        self.kernels = gdx.Kernels(KERNELS)

    def tearDown(self) -> None:
        self.team.close()

    def test_blocks_put_signal_and_wait(self) -> None:
        blocks = 5
        words = [self.team.array(count, "u8") for count in (blocks, blocks, 1, 1)]
        status = np.full(blocks, 99, "u4")
        self.team.launch(self.kernels, "send_right", *words, status, blocks=blocks, threads=64)
        self.assertEqual(status.tolist(), [0] * blocks)
        left = 2 - self.team.rank
        self.assertEqual(words[3][0], blocks * 100 * left + sum(range(blocks)))
        self.team.barrier()

    def copied(self, *values: Any) -> list[float]:
        given: list[Any] = [True, -128, 65535, 0.5, 0.1, np.array([3], "f4"), np.zeros(6)]
        given[: len(values)] = values
        self.team.launch(self.kernels, "copy_numbers", *given)
        numbers: list[float] = given[6].tolist()
        return numbers

    def test_numbers_and_arrays_arrive(self) -> None:
        self.assertEqual(self.copied(), [1, -128, 65535, 0.5, 0.1, 3])
        self.assertEqual(self.copied(False, np.int64(127), np.uint8(1), 2, 3)[:5], [0, 127, 1, 2, 3])
        self.team.launch(self.kernels, "nothing")

    def test_other_arguments_are_refused(self) -> None:
        reads_only = np.zeros(6)
        reads_only.flags.writeable = False
        three = np.array([3], "f4")
        numbers = True, 1, 1, 1.0, 1.0
        wrong: list[tuple[str, tuple[Any, ...]]] = [
            ("argument 1 is bool", (1,)),
            ("argument 2 is int8", (True, 1.0)),
            ("argument 2 is int8", (True, "1")),
            ("argument 3 is uint16", (True, 1, True)),
            ("must be real number", (True, 1, 1, "1")),
            ("argument 6 is an array of float32", (*numbers, np.array([3], "f8"))),
            ("argument 6 is an array of float32", (*numbers, 7)),
            ("argument 7 is an array of float64 without gaps, and got", (*numbers, three, np.zeros(12)[::2])),
            ("argument 7 is an array of float64 without gaps that may be written", (*numbers, three, reads_only)),
        ]
        for message, values in wrong:
            with self.subTest(message), self.assertRaisesRegex(TypeError, message):
                self.copied(*values)
        wrong = [
            ("argument 2 is int8, and 128 is out of its range", (True, 128)),
            ("argument 3 is uint16, and -1 is out of its range", (True, 1, -1)),
            ("argument 3 is uint16, and 65536 is out of its range", (True, 1, 65536)),
        ]
        for message, values in wrong:
            with self.subTest(message), self.assertRaisesRegex(OverflowError, message):
                self.copied(*values)
        with self.assertRaisesRegex(TypeError, "nothing: takes 0 arguments, and got 1"):
            self.team.launch(self.kernels, "nothing", 1)
        with self.assertRaisesRegex(KeyError, "no kernel 'other' in .*: GDX_EXPORT_KERNEL"):
            self.team.launch(self.kernels, "other")
        with self.assertRaisesRegex(OSError, "no_such.so"):
            gdx.Kernels("no_such.so")
        with self.assertRaises(gdx.Error) as too_many:
            self.team.launch(self.kernels, "nothing", threads=1025)
        self.assertEqual(too_many.exception.status, gdx.Status.INVALID_ARGUMENT)

    def test_failure_that_a_kernel_drops_is_raised(self) -> None:
        word = self.team.array(1, "u8")
        for _ in range(2):
            with self.assertRaisesRegex(gdx.Error, "put_from_elsewhere: .*window|heap") as dropped:
                self.team.launch(self.kernels, "put_from_elsewhere", word)
            self.assertEqual(dropped.exception.status, gdx.Status.INVALID_ARGUMENT)
        self.team.launch(self.kernels, "nothing")

    def test_ctrl_c_ends_a_kernels_wait(self) -> None:
        word = self.team.array(1, "u8")
        ended = threading.Event()
        late: list[bool] = []

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            late.append(not ended.wait(60))
            self.team.signal(word, 1, self.team.rank)

        thread = threading.Timer(0.2, interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            self.team.launch(self.kernels, "wait_for_ever", word)
        ended.set()
        thread.join()
        self.assertEqual(late, [False])
        self.team.barrier()


if __name__ == "__main__":
    unittest.main()
