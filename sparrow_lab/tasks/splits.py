"""Disjoint, repeatable random streams for generated prompts.

A prompt of a generated task is a function of (task, split, seed, index) alone: the four
go into one seed sequence, so streams of different splits or seeds never share a state, and any
slice can be made again after a restart.
"""

from __future__ import annotations

import zlib

import numpy as np

from sparrow_lab.tasks.base import SPLITS, Split


def prompt_rng(task: str, split: Split, seed: int, index: int) -> np.random.Generator:
    """The generator of one prompt. Calibration, verification and evaluation ignore the seed:

    their prompts are the same for every run, so runs can be compared on them.
    """
    if split != "train":
        seed = 0
    key = (zlib.crc32(task.encode()), SPLITS.index(split), seed, index)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
