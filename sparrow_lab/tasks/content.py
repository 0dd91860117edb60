"""Splits by content: a hash of the prompt itself says which split it belongs to.

Two prompts with the same text can never be in two splits, whatever seed or file they came from.
"""

from __future__ import annotations

import hashlib

from sparrow_lab.tasks.base import Split

EVEN: dict[Split, float] = {"calibrate": 0.25, "verify": 0.25, "train": 0.25, "evaluate": 0.25}
"""For generated sources, which never end."""

MOSTLY_TRAIN: dict[Split, float] = {
    "calibrate": 0.1,
    "verify": 0.1,
    "train": 0.7,
    "evaluate": 0.1,
}
"""For files."""


def content_hash(*parts: str) -> str:
    """64 hex digits of texts, in which runs of white space count as one space."""
    normal = "\x1f".join(" ".join(part.split()) for part in parts)
    return hashlib.sha256(normal.encode("utf-8", "surrogatepass")).hexdigest()


def split_of(digest: str, shares: dict[Split, float]) -> Split:
    """The split of a content hash; shares are of all contents and add up to 1."""
    place = int(digest[:15], 16) / 16**15
    for split, share in shares.items():
        place -= share
        if place < 0:
            return split
    return split
