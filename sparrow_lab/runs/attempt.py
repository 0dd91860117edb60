"""One try at a stage of a point, claimed by exclusive creation of `claim.json`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from sparrow_lab.runs.atomic import read_json, write_json

FailureKind = Literal["error", "interrupted", "timeout", "lost", "held"]
"""How an attempt ended without a result; `held`: it was not begun, for the reason given."""


class AttemptFolder:
    """`attempts/<n>/` of a point; numbers start at 1 and the highest is the owner."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.number = int(self.path.name)

    def __repr__(self) -> str:
        return f"AttemptFolder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttemptFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def claim_path(self) -> Path:
        return self.path / "claim.json"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def histograms(self) -> Path:
        return self.path / "histograms"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.json"

    @property
    def failure_path(self) -> Path:
        return self.path / "failure.json"

    def read_claim(self) -> dict[str, Any] | None:
        """Who claimed it (host, pid, start, token, time); None when the claim is unreadable."""
        claim = read_json(self.claim_path)
        return claim if isinstance(claim, dict) else None

    def still_owner(self) -> bool:
        """False once a later attempt was claimed: then nothing may be written any more."""
        return latest_number(self.path.parent) <= self.number

    def write_failure(
        self, kind: FailureKind, message: str, type: str = "", traceback: str = ""
    ) -> None:
        """Say why the attempt ended without a result; `message` is one line."""
        write_json(
            self.failure_path,
            {
                "schema": 1,
                "kind": kind,
                "type": type,
                "message": message,
                "traceback": traceback,
                "time": time.time(),
            },
        )

    def read_failure(self) -> dict[str, Any] | None:
        """What `write_failure` wrote; None when nothing did (yet)."""
        failure = read_json(self.failure_path)
        return failure if isinstance(failure, dict) else None

    def read_progress(self) -> dict[str, Any] | None:
        """{"done", "total", "note", "time"} of a running stage; None before its first step."""
        progress = read_json(self.progress_path)
        return progress if isinstance(progress, dict) else None


def claimed(folder: Path) -> list[AttemptFolder]:
    """The claimed attempts under `attempts/`, oldest first; empty when there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = sorted(int(name) for name in names if name.isdecimal())
    attempts = (AttemptFolder(folder / str(number)) for number in numbers)
    return [attempt for attempt in attempts if attempt.claim_path.exists()]


def latest_number(folder: Path) -> int:
    """Highest claimed number under `attempts/`; 0 when there is none."""
    attempts = claimed(folder)
    return attempts[-1].number if attempts else 0
