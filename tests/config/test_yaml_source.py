"""Broken text: each kind is one UserError with a place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.config.yaml_source import parse, parse_file
from sparrow_lab.errors import UserError


def failure(text: str) -> tuple[str, str]:
    """Return place and message of the error that a text raises."""
    with pytest.raises(UserError) as caught:
        parse(text, "f.yaml")
    return caught.value.where or "", caught.value.message


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "'a' is given twice; first at f.yaml:1:1"),
        ("x:\n  tau: 1\n  b: 2\n  tau: 3\n", "f.yaml:4:3", "first at f.yaml:2:3"),
        ("{a: 1, 'a': 2}", "f.yaml:1:8", "given twice"),
        ("a:\n\tb: 1\n", "f.yaml:2:1", "tab"),
        ("a: [1, 2\n", "f.yaml:", "ends too early"),
        ("a: 'x\n", "f.yaml:", "ends too early"),
        ("a: b: c\n", "f.yaml:1:5", "':' cannot stand here"),
        ("- a\nb: 1\n", "f.yaml:2:1", "indentation"),
        ("@a: 1\n", "f.yaml:1:1", "not YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1", "second document"),
        ("a: *x\n", "f.yaml:1:4", "'*x' has no anchor"),
        ("a: &x [*x]\n", "f.yaml:1:8", "contains itself"),
        ("a: !!python/name:os.system x\n", "f.yaml:1:4", "tag"),
        ("a: !foo {b: 1}\n", "f.yaml:1:4", "tag '!foo'"),
        ("? [1, 2]\n: 3\n", "f.yaml:1:3", "single word"),
        ("a: .nan\n", "f.yaml:1:4", "not a finite number"),
        ("<<: 3\n", "f.yaml:1:5", "'<<' takes a mapping"),
        ("", "f.yaml", "empty"),
        ("# only a comment\n", "f.yaml", "empty"),
        ("---\n", "f.yaml", "empty"),
        ("[" * 200 + "]" * 200, "f.yaml:1:42", "nested too deeply"),
    ],
)
def test_broken_text(text: str, where: str, words: str) -> None:
    place, message = failure(text)
    assert place.startswith(where)
    assert words in message
    assert "\n" not in message


def test_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    where, message = failure("\n".join(lines))
    assert "too large" in message
    assert where.startswith("f.yaml:")


def test_text_and_places() -> None:
    node = parse("country: NO\non: 1\ntime: 12:30:00\nlist:\n  - {a: '5'}\n", "f.yaml")
    assert node.plain() == {"country": "NO", "on": 1, "time": "12:30:00", "list": [{"a": "5"}]}
    assert node.where_of(("list", 0, "a")) == "f.yaml:5:9"
    assert node.where_of(("list", 7, "a")) == "f.yaml:5:3"
    assert node.value["country"].key_where == "f.yaml:1:1"


def test_merge_keys_and_anchors() -> None:
    text = "a: &x {p: 1, q: 2}\nb:\n  q: 3\n  <<: *x\nc: {<<: [{p: 9}, *x]}\n"
    assert parse(text, "f").plain() == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 1, "q": 3},
        "c": {"p": 9, "q": 2},
    }


def test_an_explicit_text_tag_is_text() -> None:
    assert parse("a: !!str 5\n", "f").plain() == {"a": "5"}


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert parse_file(file).plain() == {"name": "x"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
        (b"name: \x00x\n", "U+0000"),
        ("name: x\n".encode("utf-16"), "not UTF-8"),
        (b"name: caf\xe9\n", "not UTF-8"),
        (b"x" * (5 << 20), "bytes"),
    ],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(data)
    with pytest.raises(UserError, match=words.replace("+", r"\+")) as caught:
        parse_file(file)
    assert str(caught.value.where).startswith(str(file))


def test_a_folder_a_missing_file_and_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match="is a folder"):
        parse_file(tmp_path)
    with pytest.raises(UserError, match=r"no such file \(did you mean 'smoke.yaml'\?\)"):
        parse_file(tmp_path / "smok.yaml")
    with pytest.raises(UserError, match="no folder"):
        parse_file(tmp_path / "nowhere" / "a.yaml")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="this is no file"):
        parse_file(tmp_path / "pipe")
    with pytest.raises(UserError):
        parse_file(Path("a\0b"))


@given(st.text(alphabet=st.sampled_from("ab:- \n\t[]{},'\"&*!|>#%@?<1e.~"), max_size=60))
def test_any_text_gives_nodes_or_one_error(text: str) -> None:
    try:
        where = parse(text, "f").where
    except UserError as error:
        where = str(error.where)
    assert where == "f" or where.startswith("f:")
