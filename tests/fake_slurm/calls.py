"""Calling the programs of the pretended Slurm as anybody would."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def call(*command: str, stdin: str = "") -> str:
    """The output of a program, which must end with 0."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(*command: str, stdin: str = "") -> str:
    """The errors of a program, which must not end with 0."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, f"{command}\n{done.stdout}"
    return done.stderr


def submit(script: str, *options: str) -> str:
    """The id of a new job."""
    text = f"#!/bin/bash\n{script}\n"
    return call("sbatch", "--parsable", "--output=/dev/null", *options, stdin=text).strip()


def wait_until(what: Callable[[], object], seconds: float = 20) -> None:
    """Wait until `what` is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
