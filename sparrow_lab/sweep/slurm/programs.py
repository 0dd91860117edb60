"""Calling Slurm's programs: output and errors apart, a time limit, the kind of an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence

from sparrow_lab.runs.process import end_with_parent

LIMIT_S = 120.0
"""No call of a Slurm program is waited for longer."""

_PASSING = re.compile(
    r"unable to contact slurm|socket timed out|connection refused|communication|"
    r"temporarily unable|temporarily unavailable|try again|zero bytes were transmitted|"
    r"slurm_persist_conn_open|connection reset|no route to host|"
    r"slurmctld.*(down|not responding)|controller.*(not responding|in standby)",
    re.IGNORECASE,
)


class SlurmError(Exception):
    """A Slurm program failed; the text is its own, on one line.

    `passing` is true for what may be gone in a while: the controller does not answer.
    """

    def __init__(self, program: str, text: str, passing: bool) -> None:
        self.program = program
        self.text = _one_line(text, program)
        self.passing = passing
        super().__init__(f"{program}: {self.text}")


def call(command: Sequence[str], limit_s: float = LIMIT_S, bound: bool = True) -> str:
    """Run a program of Slurm and return its stdout.

    Args:
        command: the program's name and arguments.
        limit_s: wait no longer.
        bound: end the program when this process dies, so that nothing is submitted after it.

    Raises:
        SlurmError: it is not installed, failed, or did not answer in time.
    """
    program = command[0]
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=_environment(program),
            preexec_fn=end_with_parent(signal.SIGKILL) if bound else None,
        )
    except FileNotFoundError:
        raise SlurmError(program, "there is no such program on this machine", False) from None
    except OSError as error:
        raise SlurmError(program, error.strerror or str(error), True) from error
    except subprocess.TimeoutExpired:
        raise SlurmError(program, f"no answer within {limit_s:g} s; try again", True) from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}"
        raise SlurmError(program, said, bool(_PASSING.search(said)))
    return done.stdout


def _environment(program: str) -> dict[str, str] | None:
    """The variables that a program starts with; None takes ours.

    sbatch hands all on to the new job. Called from within a job, those of that job would reach
    it too: how often it was restarted, how its CPUs were bound.
    """
    if program != "sbatch":
        return None
    kept = {"SLURM_CONF", "SLURM_CLUSTERS"}
    return {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in kept}


def _one_line(text: str, program: str) -> str:
    """The lines of an error as one, without the program's name before each."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    plain = [re.sub(rf"^{re.escape(program)}: (error: )?", "", line) for line in lines]
    return "; ".join(plain) or "no message"
