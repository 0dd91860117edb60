"""Items of one reasoning_gym dataset by raw number, and its own judging of answers.

Datasets are made in chunks of a fixed size: some draw the settings of all their items when they are
made, so that an item depends on the dataset's size; and none needs to know how many are wanted.
"""

from __future__ import annotations

import dataclasses
import random
from functools import lru_cache
from typing import Any

import numpy as np

from sparrow_lab.errors import UserError, nearest

CHUNK = 4096
"""Items of one dataset object; part of what an item is."""

SEEDS = 2**31
"""Some datasets hand their seed to numpy, which takes 32 bits."""


class GymSource:
    """One dataset with its options.

    Raises:
        UserError: unknown dataset, unknown option, or a value that the dataset refuses.
    """

    def __init__(self, dataset: str | None, options: dict[str, Any]) -> None:
        try:
            from reasoning_gym.factory import DATASETS
        except ModuleNotFoundError as error:
            raise UserError(
                f"this task needs the package '{error.name}': pip install -e '.[gym]' "
                "(a C compiler and Python's headers are needed)",
                "task.name reasoning_gym",
            ) from None

        where = "task.dataset"
        if dataset is None:
            raise UserError(
                "reasoning_gym needs the name of a dataset, such as gsm_symbolic", where
            )
        if dataset not in DATASETS:
            hint = nearest(dataset, DATASETS)
            raise UserError(f"reasoning_gym has no dataset '{dataset}'{hint}", where)
        self.dataset = dataset
        self.options = options
        fields = {f.name for f in dataclasses.fields(DATASETS[dataset][1])} - {"seed", "size"}
        for key in options:
            if key in ("seed", "size"):
                raise UserError("set by the splits, leave it out", f"task.params.{key}")
            if key not in fields:
                raise UserError(
                    f"{dataset} has no option '{key}'{nearest(key, fields)}; "
                    f"it has {', '.join(sorted(fields))}",
                    f"task.params.{key}",
                )
        self.chunk = lru_cache(maxsize=4)(self._make)
        self.item(0)

    def _make(self, seed: int) -> Any:
        from reasoning_gym.factory import create_dataset

        try:
            return create_dataset(self.dataset, seed=seed, size=CHUNK, **self.options)
        except (AssertionError, ValueError, TypeError) as error:
            reason = str(error) or f"{type(error).__name__} from its own check"
            raise UserError(
                f"{self.dataset} refuses its options: {reason}", "task.params"
            ) from None

    def item(self, number: int) -> dict[str, Any]:
        """An entry: `question`, `answer`, `metadata`. The same number gives the same entry.

        Raises:
            UserError: the dataset cannot make it with these options.
        """
        seed, place = number // CHUNK * CHUNK % SEEDS, number % CHUNK
        # a few datasets seed the global generators; nobody else's draws may hang on that
        states = random.getstate(), np.random.get_state()
        try:
            entry: dict[str, Any] = self.chunk(seed)[place]
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{self.dataset} cannot make an item with these options: {error!r}", "task.params"
            ) from None
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
        return entry

    def reproducible(self, number: int) -> bool:
        """Whether two makings of an item agree."""
        first = self.item(number)
        self.chunk.cache_clear()
        again = self.item(number)
        return bool(first["question"] == again["question"] and first["answer"] == again["answer"])


_scorers: dict[str, Any] = {}


def warm_up(dataset: str, options: dict[str, Any], *_: Any) -> Any:
    """In a judge, before its clock starts: make the dataset whose scorer is wanted."""
    key = f"{dataset} {options!r}"
    if key not in _scorers:
        from reasoning_gym.factory import create_dataset

        _scorers[key] = create_dataset(dataset, seed=0, size=CHUNK, **options)
    return _scorers[key]


def score(dataset: str, options: dict[str, Any], answer: str, entry: dict[str, Any]) -> float:
    """Runs in a judge: the dataset's own score of an answer, from 0 to 1.

    Raises:
        Exception: whatever the dataset raises; the pool counts it as a crash.
    """
    return float(warm_up(dataset, options).score_answer(answer, entry))
