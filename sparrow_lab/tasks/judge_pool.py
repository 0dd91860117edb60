"""Checks of answers in child processes with a real kill at the limit.

A parser of mathematics can run for minutes on ten characters, or hold the interpreter's lock so
that no signal gets through. So each check runs in a process of its own kind (`judge_worker`), which
is killed and replaced. `JudgePool.run` may be called from any thread: no signals are used here.

The limit is processor time of the check, so that a busy machine does not turn right answers into
timeouts; a check that waits instead of working is stopped after `WALL_FACTOR` times the limit.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from sparrow_lab.runs.process import shielded
from sparrow_lab.tasks.judge_worker import HEADER

START_S = 120.0
"""Wall time for a judge to start and import what a check needs; not part of any limit."""

WALL_FACTOR = 10.0

_POLL_S = 0.05


@dataclass(frozen=True)
class Outcome:
    """How a check ended: its value, or that it was killed at the limit, or why it crashed."""

    status: Literal["done", "timeout", "crash"]
    value: Any = None
    reason: str = ""


class JudgeDied(Exception):
    """The child ended by itself."""


class Judge:
    """One child process. Used by one thread at a time; `close` kills it."""

    def __init__(self) -> None:
        with shielded():  # a judge that dies of the job's own stop signal would be a wrong answer
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sparrow_lab.tasks.judge_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # its own children die with it; Ctrl-C is the parent's
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._buffer = b""

    def check(self, function: str, arguments: tuple[Any, ...], limit_s: float) -> Outcome:
        """Run a check to its end or to the limit; after anything but "done" use `alive`."""
        request = pickle.dumps((function, arguments, limit_s))
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(HEADER.pack(len(request)) + request)
            self.process.stdin.flush()
            answer = self._read(time.monotonic() + START_S)
            if answer is None:
                self.close()
                return Outcome("crash", reason=f"the judge did not start within {START_S:g} s")
            if "started" in answer:
                answer = self._read_within(limit_s)
                if answer is None:
                    self.close()
                    return Outcome("timeout", reason=f"killed after {limit_s:g} s")
        except (JudgeDied, BrokenPipeError):
            self.close()
            return Outcome("crash", reason=f"the judge died, exit code {self.process.returncode}")
        if "crash" in answer:
            return Outcome("crash", reason=answer["crash"])
        return Outcome("done", answer["value"])

    def _read_within(self, limit_s: float) -> dict[str, Any] | None:
        """The next line, or None once the child has worked, or waited, for too long."""
        begin, used = time.monotonic(), self._cpu()
        while True:
            left = limit_s - (self._cpu() - used)
            last = begin + WALL_FACTOR * limit_s
            answer = self._read(min(time.monotonic() + max(left, _POLL_S), last))
            if answer is not None:
                return answer
            if self._cpu() - used >= limit_s or time.monotonic() >= last:
                return None

    def _read(self, until: float) -> dict[str, Any] | None:
        """One line of JSON, or None at `until` (monotonic seconds)."""
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(pipe, 1 << 16)
            if not part:
                raise JudgeDied
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cpu(self) -> float:
        """Processor seconds of the child so far."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def alive(self) -> bool:
        """Whether it can take another check."""
        return self.process.poll() is None

    def close(self) -> None:
        """Kill the child and whatever it started, and collect it."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class JudgePool:
    """A fixed number of places for judges; each is started when it is first needed.

    A caller waits for a free place outside the limit: a burst of checks is slow, never timed out.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.timeouts = 0
        self.crashes = 0
        self._lock = threading.Lock()
        self._free: queue.LifoQueue[Judge | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)

    def run(self, function: str, *arguments: Any, limit_s: float) -> Outcome:
        """Run `package.module:name(*arguments)` in a judge.

        Args:
            arguments: anything that pickles. The value must be JSON.
            limit_s: processor seconds of the check itself, more than 0.
        """
        judge = self._free.get()
        try:
            if judge is None or not judge.alive():
                judge = Judge()
            outcome = judge.check(function, arguments, limit_s)
        except BaseException:
            if judge is not None:
                judge.close()
            judge = None
            raise
        finally:
            # the place comes back whatever happened; a killed judge is replaced by the next caller
            self._free.put(judge if judge is not None and judge.alive() else None)
        with self._lock:
            self.timeouts += outcome.status == "timeout"
            self.crashes += outcome.status == "crash"
        return outcome

    def places(self) -> int:
        """Places that no caller holds at this moment."""
        return self._free.qsize()

    def close(self) -> None:
        """Kill all idle judges; the pool starts new ones if it is used again."""
        places = [self._free.get() for _ in range(self._free.qsize())]
        for judge in places:
            if judge is not None:
                judge.close()
            self._free.put(None)


_pool: tuple[int, JudgePool] | None = None
_pool_lock = threading.Lock()


def judge_pool() -> JudgePool:
    """The pool of this process: as many places as cores, at most 8. A forked child gets its own."""
    global _pool
    with _pool_lock:
        if _pool is None or _pool[0] != os.getpid():
            _pool = (os.getpid(), JudgePool(max(1, min(8, os.cpu_count() or 1))))
            atexit.register(_pool[1].close)
        return _pool[1]
