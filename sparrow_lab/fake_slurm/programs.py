"""The command line of every program: count the call, let go wrong what is to, do the work."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sparrow_lab.fake_slurm import faults
from sparrow_lab.fake_slurm.answer import Answer, Refused
from sparrow_lab.fake_slurm.store import Store

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun")

WRAPPER = """#!{python} -SE
import sys
sys.path.insert(0, {root!r})
from sparrow_lab.fake_slurm.programs import main
sys.exit(main({program!r}, {folder!r}, sys.argv[1:]))
"""
"""-S, -E: neither the site's packages nor the caller's PYTHONPATH slow it down or mislead it."""


def install(folder: Path) -> Path:
    """Write the programs into a folder `bin` and return that."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    for program in (*PROGRAMS, "controller"):
        values = {"python": sys.executable, "root": root, "program": program, "folder": str(folder)}
        (place / program).write_text(WRAPPER.format(**values))
        (place / program).chmod(0o755)
    return place


def main(program: str, folder: str, words: list[str]) -> int:
    """Run one program; its exit code."""
    if program == "controller":
        from sparrow_lab.fake_slurm.controller import Controller

        Controller(Path(folder)).run()
        return 0
    if program == "srun":
        from sparrow_lab.fake_slurm.srun import srun

        return srun(words)
    answer = called(Store(Path(folder)), program, words)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.stdout.flush()
    return answer.code


def called(store: Store, program: str, words: list[str]) -> Answer:
    """What a program answers, faults and all."""
    due = faults.of_call(store, program, words)
    answer = due.before()
    if answer is None:
        try:
            answer = _work(store, program, words)
        except Refused as refusal:
            answer = Answer(err=refusal.text, code=refusal.code)
        answer = due.after() or answer
    return answer


def _work(store: Store, program: str, words: list[str]) -> Answer:
    # imported one by one: each call of a program needs only its own
    if program == "sbatch":
        from sparrow_lab.fake_slurm.sbatch import sbatch

        asked = not any(not word.startswith("-") or "wrap" in word for word in words)
        return sbatch(store, words, os.environ, sys.stdin.read() if asked else "")
    if program == "squeue":
        from sparrow_lab.fake_slurm.squeue import squeue

        return squeue(store, words)
    if program == "sacct":
        from sparrow_lab.fake_slurm.sacct import sacct

        return sacct(store, words)
    if program == "scancel":
        from sparrow_lab.fake_slurm.scancel import scancel

        return scancel(store, words)
    if program == "scontrol":
        from sparrow_lab.fake_slurm.scontrol import scontrol

        return scontrol(store, words)
    from sparrow_lab.fake_slurm.sinfo import sinfo

    return sinfo(store, words)
