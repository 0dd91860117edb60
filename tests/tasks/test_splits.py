"""Prompts of the built-in tasks: disjoint splits, and the same text after every restart."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np
import pytest

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.tasks import SPLITS, make_task
from sparrow_lab.tasks import symbols as sym
from sparrow_lab.tasks.splits import prompt_rng

TASKS = ("pointer_chase", "permutation_walk")


def task_of(name: str, **params: Any) -> Any:
    return make_task(TaskConfig.model_validate({"name": name, "params": params}))


@pytest.mark.parametrize("name", TASKS)
def test_splits_share_no_prompt(name: str) -> None:
    task = task_of(name)
    texts = {s: {p.tokens for p in task.prompts(s, 0, 300)} for s in SPLITS}
    ids = {s: {p.id for p in task.prompts(s, 0, 300)} for s in SPLITS}
    for split in SPLITS:
        assert len(texts[split]) == len(ids[split]) == 300
    for a, b in itertools.combinations(SPLITS, 2):
        assert not texts[a] & texts[b] and not ids[a] & ids[b]


@pytest.mark.parametrize("name", TASKS)
def test_only_training_prompts_depend_on_the_seed(name: str) -> None:
    task = task_of(name)
    for split in SPLITS:
        one, two = (task.prompts(split, 0, 20, seed) for seed in (1, 2))
        if split == "train":
            assert not {p.tokens for p in one} & {p.tokens for p in two}
            assert not {p.id for p in one} & {p.id for p in two}
        else:
            assert [p.tokens for p in one] == [p.tokens for p in two]


@pytest.mark.parametrize("name", TASKS)
def test_any_slice_is_part_of_the_same_stream(name: str) -> None:
    whole = task_of(name).prompts("train", 0, 30, 7)
    again = task_of(name)
    parts = [p for start in (0, 11, 12, 29) for p in again.prompts("train", start, 30 - start, 7)]
    assert parts[:30] == whole
    assert again.prompts("train", 11, 3, 7) == whole[11:14]
    assert [p.answer for p in again.prompts("train", 11, 3, 7)] == [p.answer for p in whole[11:14]]
    assert again.prompts("train", 5, 0, 7) == []
    assert all(p.tokens and p.tokens[0] == sym.BOS for p in whole)


@pytest.mark.parametrize(
    ("name", "golden"),
    [("pointer_chase", "f0dfb951b93d3a9a"), ("permutation_walk", "1c04dcd03e884cd5")],
)
def test_prompts_never_change(name: str, golden: str) -> None:
    """Another text under the same id would mix two experiments in one sweep."""
    task = task_of(name)
    texts = [[p.tokens for p in task.prompts(s, 5, 4, 3)] for s in SPLITS]
    assert hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16] == golden


def test_streams_of_neighbouring_keys_differ() -> None:
    keys = itertools.product(TASKS, ("train", "evaluate"), (0, 1), (0, 1, 2))
    draws = [prompt_rng(t, s, seed, i).integers(2**62) for t, s, seed, i in keys]  # type: ignore[arg-type]
    assert len(set(draws)) == 2 * (2 * 3 + 3), "evaluate ignores the seed, all else is another key"


def test_symbols_keep_their_ids() -> None:
    """Ids are part of the shipped weights."""
    text = " ".join(sym.SYMBOLS[:71])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3494d1379e557970"
    assert len(set(sym.SYMBOLS)) == len(sym.SYMBOLS)
    assert (sym.PAD, sym.BOS, sym.EOS) == (0, 1, 2)
    assert [sym.SYMBOLS[i] for i in (sym.KEY0, sym.LABEL0, sym.COUNT0)] == ["k0", "A", "0"]


def test_the_tokenizer_spells_prompts() -> None:
    tokenizer = sym.build_tokenizer()
    for name in TASKS:
        for prompt in task_of(name).prompts("train", 0, 3):
            text = tokenizer.decode(prompt.tokens)
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(prompt.tokens)


@pytest.mark.parametrize(
    ("name", "params", "where", "message"),
    [
        ("pointer_chase", {"pears": 16}, "task.params.pears", "did you mean 'pairs'"),
        ("pointer_chase", {"hop_max": 4}, "task.params.hop_max", "did you mean 'hops_max'"),
        ("pointer_chase", {"pairs": 3}, "task.params.pairs", "greater than or equal to 4"),
        ("pointer_chase", {"pairs": 25}, "task.params.pairs", "less than or equal to 24"),
        ("pointer_chase", {"pairs": "many"}, "task.params.pairs", "valid integer"),
        ("pointer_chase", {"hops_min": 5, "hops_max": 4}, "task.params", "hops 5 to 4"),
        ("pointer_chase", {"pairs": 6, "hops_max": 6}, "task.params", "do not fit 6 pairs"),
        ("pointer_chase", {"hops_max": 9}, "task.params.hops_max", "max_hops 8"),
        ("permutation_walk", {"steps_mim": 3}, "task.params.steps_mim", "did you mean 'steps_mi"),
        ("permutation_walk", {"steps_min": 9, "steps_max": 8}, "steps_min", "is above steps_max"),
        ("permutation_walk", {"tolerance": 1.5}, "tolerance", "less than or equal to 1"),
        ("permutation_walk", {"steps_max": 29}, "steps_max", "less than or equal to 28"),
    ],
)
def test_bad_options_are_refused_with_the_nearest_name(
    name: str, params: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        task_of(name, **params)
    assert str(caught.value.where).endswith(where)


@pytest.mark.parametrize("name", TASKS)
def test_the_configs_cap_wins_over_the_tasks_own(name: str) -> None:
    own = task_of(name).max_new_tokens
    capped = make_task(TaskConfig.model_validate({"name": name, "max_new_tokens": 9}))
    assert capped.max_new_tokens == 9 != own


def test_prompts_are_spread_evenly() -> None:
    """The asked label and the number of hops carry no bias that a policy could learn instead."""
    prompts = task_of("pointer_chase").prompts("train", 0, 2000)
    labels = np.bincount([p.answer.label - sym.LABEL0 for p in prompts], minlength=8)
    hops = np.bincount([p.answer.hops for p in prompts])[2:]
    assert len(hops) == 5
    for counts in (labels, hops):
        assert abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())
