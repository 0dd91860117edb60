"""Text to nodes: YAML 1.2 with places, and one clear sentence for every broken input.

The events of ruamel.yaml's round-trip parser are read directly, because its
constructor would resolve scalars by rules of its own and forget where keys were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from sparrow_lab.config.nodes import Node
from sparrow_lab.config.scalars import resolve
from sparrow_lab.errors import UserError, nearest

MAX_BYTES = 4 << 20
MAX_DEPTH = 40
MAX_NODES = 500_000
_STR_TAG = "tag:yaml.org,2002:str"


def read_text(path: Path, kind: str = "experiment file") -> str:
    """Read a file of YAML; UserError for a folder, a missing, binary or huge file.

    Args:
        kind: what the file should be, for the message; an article "a" or "an" is put before it.
    """
    where = str(path)
    try:
        if path.is_dir():
            raise UserError(f"this is a folder; give {_article(kind)} (.yaml)", where)
        if not path.is_file():
            raise UserError(_missing(path, kind), where)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(
                f"this file has {size:,} bytes; {_article(kind)} has at most {MAX_BYTES:,}", where
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read this file: {reason}", where) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError("this is not UTF-8 text; is it a binary file?", f"{where}:{line}") from None
    strange = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]", text)
    if strange:
        raise UserError(
            f"the character U+{ord(strange[0]):04X} is not text; is it a binary file?",
            _at(where, text, strange.start()),
        )
    return text


def parse_file(path: Path, kind: str = "experiment file") -> Node:
    """Parse a file into nodes; the top level is whatever it is. `kind` as in `read_text`."""
    return parse(read_text(path, kind), str(path))


def parse(text: str, name: str, *, option: bool = False) -> Node:
    """Parse YAML text; `name` starts every place.

    Args:
        option: the text is a command-line option, whose places are `name` alone.
    """
    return _Builder(text, name, option).build()


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _missing(path: Path, kind: str) -> str:
    if path.exists():
        return f"this is no file; name {_article(kind)}"
    try:
        siblings = [p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml"}]
    except OSError:
        return "there is no such file" + (
            f", and no folder '{path.parent}'" if not path.parent.is_dir() else ""
        )
    return "there is no such file" + nearest(path.name, siblings)


def _at(name: str, text: str, offset: int) -> str:
    line = text.count("\n", 0, offset)
    return f"{name}:{line + 1}:{offset - (text.rfind(chr(10), 0, offset) + 1) + 1}"


class _Builder:
    """Builds the tree of one text from parser events."""

    def __init__(self, text: str, name: str, option: bool) -> None:
        self.text, self.name, self.option = text, name, option
        self.anchors: dict[str, Node | None] = {}
        self.count = 0
        self.events: Iterator[Any] = iter(())

    def build(self) -> Node:
        try:
            self.events = iter(YAML(typ="rt", pure=True).parse(self.text))
            return self._document()
        except MarkedYAMLError as error:
            raise UserError(self._explain(error), self._place(error.problem_mark)) from None
        except YAMLError as error:
            raise UserError(f"this is not YAML: {error}", self.name) from None
        except RecursionError:
            raise UserError("this is nested too deeply", self.name) from None

    def _document(self) -> Node:
        root: Node | None = None
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise UserError(
                        "a second document starts here; a file holds one", self._where(event)
                    )
            elif not isinstance(event, (StreamStartEvent, StreamEndEvent, DocumentEndEvent)):
                root = self._node(event, 0)
        if self.option and root is None:
            return Node(None, self.name)
        if root is None or (root.value is None and not self.option):
            raise UserError("this file is empty", self.name)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        where = self._where(event)
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_NODES:
            raise UserError("this is nested too deeply, or too large once aliases are read", where)
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor, where)
        self._check_tag(event, where)
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, ScalarEvent):
            node = Node(self._scalar(event, where), where)
        elif isinstance(event, SequenceStartEvent):
            node = Node(self._sequence(depth), where)
        elif isinstance(event, MappingStartEvent):
            node = Node(self._mapping(depth), where)
        else:
            raise UserError("this is not YAML", where)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str, where: str) -> Node:
        if anchor not in self.anchors:
            raise UserError(f"the alias '*{anchor}' has no anchor '&{anchor}' above it", where)
        target = self.anchors[anchor]
        if target is None:
            raise UserError(f"the alias '*{anchor}' contains itself", where)
        self.count += _size(target)
        if self.count > MAX_NODES:
            raise UserError("this is too large once aliases are read", where)
        return Node(target.value, where)

    def _check_tag(self, event: Any, where: str) -> None:
        tag = str(event.ctag) if event.ctag is not None else None
        if tag not in (None, "!", "None") and not (
            tag == _STR_TAG and isinstance(event, ScalarEvent)
        ):
            raise UserError(f"the tag '{tag}' is not allowed; write plain values", where)

    def _scalar(self, event: ScalarEvent, where: str) -> Any:
        if event.style or event.ctag is not None:
            return event.value
        try:
            return resolve(event.value)
        except ValueError as error:
            raise UserError(str(error), where) from None

    def _sequence(self, depth: int) -> list[Node]:
        items = []
        for event in self.events:
            if isinstance(event, SequenceEndEvent):
                break
            items.append(self._node(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Node]:
        pairs: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for event in self.events:
            if isinstance(event, MappingEndEvent):
                break
            where = self._where(event)
            if not isinstance(event, ScalarEvent):
                raise UserError("a key is a single word, not a list, mapping or alias", where)
            key = event.value
            value_event = next(self.events)
            value = self._node(value_event, depth + 1)
            if key == "<<" and not event.style:
                merged.update(self._merge_key(value))
                continue
            if key in pairs:
                raise UserError(
                    f"the key '{key}' is given twice; first at {pairs[key].key_where}", where
                )
            value.key_where = where
            if getattr(value_event, "value", None) == "" and value.value is None:
                value.where = where  # an empty value has no place of its own
            pairs[key] = value
        return {**merged, **pairs}

    def _merge_key(self, value: Node) -> dict[str, Node]:
        """Read YAML 1.1's `<<: *other`, which many files use; own keys win over merged ones."""
        sources = value.value if isinstance(value.value, list) else [value]
        merged: dict[str, Node] = {}
        for source in reversed(sources):
            if not isinstance(source.value, dict):
                raise UserError("'<<' takes a mapping or a list of mappings", source.where)
            merged.update(source.value)
        return merged

    def _where(self, event: Any) -> str:
        return self._place(event.start_mark)

    def _place(self, mark: Any) -> str:
        if self.option or mark is None:
            return self.name
        return f"{self.name}:{mark.line + 1}:{mark.column + 1}"

    def _explain(self, error: MarkedYAMLError) -> str:
        """Say what is wrong in words; the parser's own for what is not known here."""
        problem = str(error.problem or "")
        mark = error.problem_mark
        lines = self.text.splitlines()
        line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
        if "'\\t'" in problem or "\t" in line[: len(line) - len(line.lstrip())]:
            return "a tab cannot indent YAML; use spaces"
        if "mapping values are not allowed" in problem:
            return "a ':' cannot stand here; quote the text, or check the indentation"
        if "<block end>" in problem:
            return "the indentation does not fit the lines above"
        if "end of stream" in problem or "<stream end>" in problem:
            return f"the file ends too early ({error.context or problem})"
        return f"this is not YAML: {problem}" + (f" ({error.context})" if error.context else "")


def _size(node: Node) -> int:
    if isinstance(node.value, dict):
        return 1 + sum(_size(child) for child in node.value.values())
    if isinstance(node.value, list):
        return 1 + sum(_size(child) for child in node.value)
    return 1
