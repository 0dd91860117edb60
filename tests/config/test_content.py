"""Files and folders are known by what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_lab.config.content import check_pinned, content_hash, file_sha256, folder_fingerprint
from sparrow_lab.errors import UserError


def test_the_hash_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert file_sha256(path).startswith("ba7816bf8f01cfea")
    assert content_hash(path) == file_sha256(path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("config.json", True),
        ("tokenizer.json", True),
        ("merges.txt", True),
        ("model.safetensors", True),
        ("README.md", False),
        (".lock", False),
    ],
)
def test_what_counts_in_a_model_folder(tmp_path: Path, name: str, counts: bool) -> None:
    (tmp_path / name).write_text("one")
    before = folder_fingerprint(tmp_path)
    (tmp_path / name).write_text("two")
    assert (folder_fingerprint(tmp_path) != before) == counts


def test_both_ends_and_the_size_of_weights_count(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    seen = set()
    for content in (bytes(300_000), b"x" + bytes(299_999), bytes(299_999) + b"x", bytes(300_001)):
        path.write_bytes(content)
        seen.add(folder_fingerprint(tmp_path))
    assert len(seen) == 4


def test_pins(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    check_pinned(None, path)
    check_pinned(file_sha256(path), path)
    with pytest.raises(UserError, match="has changed since it was pinned") as caught:
        check_pinned("0" * 64, path, "here")
    assert caught.value.where == "here"
