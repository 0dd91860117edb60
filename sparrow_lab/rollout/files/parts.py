"""Finished samples on disk: small parts while a rollout goes on, one file when it is whole.

Beside `samples.parquet` lies the folder `samples.parquet.parts` with the settings of the rollout
and a Parquet file for every few samples that have ended; each is there whole or not at all. Who
starts again reads which samples exist. The settings are also kept in the finished file.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import create_json, read_json, write_bytes

KEY = b"sparrow_lab.rollout"
"""Where the finished file keeps the settings."""

SCHEMA = pa.schema(
    [
        ("prompt", pa.int64()),  # line of the prompts file that is not empty, from 0
        ("sample", pa.int64()),  # of that prompt, from 0
        ("tokens", pa.list_(pa.int32())),
        ("finished", pa.bool_()),  # by a stop token, before the cap
        ("logp", pa.list_(pa.float32())),  # of the distribution sampled from
        ("raw_logp", pa.list_(pa.float32())),  # untruncated, at the temperature
        ("attended", pa.list_(pa.int32())),  # KV tokens read by a sparse layer; 0 for the first
        ("text", pa.string()),
    ]
)


class Parts:
    """The samples of one rollout.

    Args:
        out: the finished file.
        settings: all that decides the samples; JSON.

    Raises:
        UserError: there are samples of other settings; names the first that differs, both sides.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        if out.is_dir():
            raise UserError("is a folder; name a file", f"--out {out}")
        self.out, self.settings = out, settings
        self.folder = out.with_name(out.name + ".parts")
        self.whole = out.exists()
        if self.whole:
            _compare(_settings_of(out), settings, out)
            return
        written = self.folder / "settings.json"
        if not create_json(written, settings):
            _compare(read_json(written), settings, self.folder)

    def done(self) -> set[tuple[int, int]]:
        """(prompt, sample) of everything that is on disk."""
        found = set()
        for path in self._files():
            keys = _read(path, ["prompt", "sample"])
            found |= set(
                zip(*(keys[name].to_pylist() for name in ("prompt", "sample")), strict=True)
            )
        return found

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write a part."""
        if not rows:
            return
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), buffer, compression="zstd")
        # no two processes, ranks of one rollout, may choose one name
        name = f"{rows[0]['prompt']:08d}-{rows[0]['sample']:05d}-{secrets.token_hex(4)}.parquet"
        write_bytes(self.folder / name, buffer.getvalue())

    def finish(self, count: int) -> bool:
        """Put the parts together if all `count` samples are there; False if some are missing."""
        try:
            tables = [_read(path) for path in self._files()]
        except FileNotFoundError:  # another rank has just done it
            return self.out.exists()
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        table = table.sort_by([("prompt", "ascending"), ("sample", "ascending")])
        keys = _keys(table)
        first = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
        if len(first) < count:
            return self.out.exists()
        table = table.take(first).replace_schema_metadata(
            {KEY: json.dumps(self.settings, ensure_ascii=False).encode()}
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_bytes(self.out, buffer.getvalue())
        shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def _files(self) -> Iterator[Path]:
        source = [self.out] if self.whole else sorted(self.folder.glob("[0-9]*.parquet"))
        yield from source


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns)
    except pa.ArrowInvalid as error:
        raise UserError(f"is damaged ({error}); remove it to make it again", str(path)) from None


def _keys(table: pa.Table) -> list[tuple[int, int]]:
    """(prompt, sample) of each row."""
    columns = (table[name].to_pylist() for name in ("prompt", "sample"))
    return list(zip(*columns, strict=True))


def _settings_of(out: Path) -> Any:
    try:
        metadata = pq.read_schema(out).metadata or {}
    except (OSError, pa.ArrowInvalid):
        metadata = {}
    if KEY not in metadata:
        raise UserError("exists and is not a rollout's; move it away", f"--out {out}")
    return json.loads(metadata[KEY])


def _compare(found: Any, wanted: dict[str, Any], path: Path) -> None:
    """Refuse samples of other settings."""
    if not isinstance(found, dict):
        raise UserError("has no settings that can be read; remove it to start anew", str(path))
    for name in [*wanted, *found]:
        there, asked = found.get(name), wanted.get(name)
        if there != asked:
            raise UserError(
                f"holds samples made with {name} = {_short(there)}, but the run has "
                f"{_short(asked)}; choose another --out or the same settings",
                str(path),
            )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
