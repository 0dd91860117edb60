"""The code as it was submitted, kept by content, so that an edit changes nothing that waits.

Jobs import the copy. A tree that is not committed is no hindrance: its patch lies beside.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import write_bytes, write_json
from sparrow_lab.runs.layout import SweepFolder

PACKAGES = ("sparrow_lab", "sparrow_kernels", "sparrow_analysis")
DIGITS = 16
_SKIPPED = {"__pycache__"}


def take_snapshot(sweep: SweepFolder) -> Path:
    """Copy the packages into `code/<hash>/` of the sweep unless they are there; that folder.

    Beside it `<hash>.git.json` names the commit, and `<hash>.patch` holds what was not
    committed, where the code lies in a git repository.

    Raises:
        UserError: a package cannot be found or read.
        OSError: no space.
    """
    sources = {name: _folder_of(name) for name in PACKAGES}
    files = [
        (f"{name}/{path}", source / path)
        for name, source in sources.items()
        for path in _files(source)
    ]
    sha = hashlib.sha256()
    for name, path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        sha.update(f"{name}\0{content}\0".encode())
    digest = sha.hexdigest()[:DIGITS]
    target = sweep.code / digest
    if not target.is_dir():
        _copy(files, target)
    _note_commit(sources["sparrow_lab"], sweep.code / digest)
    return target


def _folder_of(name: str) -> Path:
    spec = find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise UserError(f"the package '{name}' is not installed, so it cannot be submitted", name)
    return Path(places[0]).resolve()


def _files(folder: Path) -> list[str]:
    """Paths below a folder, sorted; compiled files and links out of it are left out."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED)
        found += [os.path.relpath(os.path.join(root, n), folder) for n in sorted(names)]
    return [path for path in found if not path.endswith((".pyc", ".tmp"))]


def _copy(files: list[tuple[str, Path]], target: Path) -> None:
    """Copy under another name first: a folder of this name is always whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    try:
        for name, path in files:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, part / name)
        part.chmod(0o755)
        part.rename(target)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not target.is_dir():  # else another process has just made the same
            raise


def _note_commit(source: Path, stem: Path) -> None:
    # an environment may lie inside a repository of somebody's own, which is none of ours
    ours = _git(source, "ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git(source, "rev-parse", "HEAD") if ours else None
    if commit is None:
        return
    patch = _git(source, "diff", "HEAD", "--binary") or b""
    note = {"commit": commit.decode().strip(), "dirty": bool(patch)}
    write_json(stem.with_name(f"{stem.name}.git.json"), note, durable=False)
    if patch:
        write_bytes(stem.with_name(f"{stem.name}.patch"), patch, durable=False)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
