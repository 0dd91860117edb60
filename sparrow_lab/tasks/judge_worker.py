"""A judge: a child process that runs one check at a time and can be killed.

Started by `judge_pool` as `python -m sparrow_lab.tasks.judge_worker`. Requests come in as pickles,
since the parent is trusted; answers go out as JSON lines, since a check runs code that a model's
answer steers. A line `{"started": true}` follows the imports of a check: the parent's clock
starts when the work does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

HEADER = struct.Struct(">Q")
"""Length of the pickle that follows."""

MEMORY_BYTES = 4 << 30
"""Address space of a judge: a power tower must not take the machine's memory."""

CPU_MARGIN_S = 30
"""A judge whose parent died in the middle of a check stops after this much more processor time."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the pipe closes."""

    def say(**line: Any) -> None:
        answers.write(json.dumps(line).encode() + b"\n")
        answers.flush()

    while len(header := requests.read(HEADER.size)) == HEADER.size:
        function, arguments, limit_s = pickle.loads(requests.read(*HEADER.unpack(header)))
        try:
            check = _find(function, arguments)
            _limit_cpu(limit_s)
            say(started=True)
            value = check(*arguments)
        except BaseException as error:
            if isinstance(error, SystemExit | KeyboardInterrupt):
                os._exit(1)
            say(crash=f"{type(error).__name__}: {str(error)[:500]}")
        else:
            say(value=value)


def _find(function: str, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Import `package.module:name`; a module's `warm_up` comes first, off the clock."""
    module_name, _, name = function.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda *_: None)(*arguments)
    found: Callable[..., Any] = getattr(module, name)
    return found


def _limit_cpu(limit_s: float) -> None:
    """Let the kernel stop this process if the parent is not there to do it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit_s) + CPU_MARGIN_S, hard))


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch_parent(parent: int) -> None:
    """Leave when the parent is gone, even in the middle of a check."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Take over stdin and stdout for the protocol; what a check prints goes nowhere."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.setrecursionlimit(3000)
    _limit_memory()
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    serve(requests, answers)


if __name__ == "__main__":
    main()
