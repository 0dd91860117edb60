"""Pointer chasing: the table of a prompt, demonstrations and verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.tasks import symbols as sym
from sparrow_lab.tasks.base import Prompt, Verdict
from sparrow_lab.tasks.pointer_chase import PointerChase


def make(**params: Any) -> PointerChase:
    return PointerChase(TaskConfig.model_validate({"params": params}))


def links(prompt: Prompt) -> dict[int, int]:
    """The table as it stands in the prompt's text."""
    body = prompt.tokens[1:-3]
    assert len(body) % 4 == 0
    out = {}
    for i in range(0, len(body), 4):
        key, arrow, value, end = body[i : i + 4]
        assert (arrow, end) == (sym.ARROW, sym.SEMICOLON)
        assert key not in out
        out[key] = value
    return out


def is_label(token: int) -> bool:
    return sym.LABEL0 <= token < sym.LABEL0 + len(sym.LABELS)


@st.composite
def options(draw: st.DrawFn) -> dict[str, int]:
    chains = draw(st.integers(2, 8))
    pairs = draw(st.integers(max(4, chains), 24))
    most = pairs - chains + 1
    low = draw(st.integers(1, most))
    high = draw(st.integers(low, most))
    return {"pairs": pairs, "chains": chains, "hops_min": low, "hops_max": high, "max_hops": high}


@settings(max_examples=60)
@given(params=options(), index=st.integers(0, 999))
def test_the_text_holds_chains_that_end_in_labels_of_their_own(
    params: dict[str, int], index: int
) -> None:
    task = make(**params)
    (prompt,) = task.prompts("train", index, 1, seed=4)
    table = links(prompt)
    assert len(table) == params["pairs"]
    assert prompt.tokens[-3] == sym.QUESTION and prompt.tokens[-1] == sym.COLON
    ends = [v for v in table.values() if is_label(v)]
    assert len(ends) == len(set(ends)) == params["chains"]
    values = list(table.values())
    assert len(set(values)) == len(values), "chains never meet"
    node, hops = prompt.tokens[-2], 0
    while not is_label(node):
        node, hops = table[node], hops + 1
    assert node == prompt.answer.label
    assert params["hops_min"] <= hops == prompt.answer.hops <= params["hops_max"]


@settings(max_examples=40)
@given(params=options(), index=st.integers(0, 999))
def test_a_demonstration_without_faults_is_right_and_no_prefix_of_it_is(
    params: dict[str, int], index: int
) -> None:
    task = make(**params)
    (prompt,) = task.prompts("train", index, 1)
    answer = task.demonstration(prompt, np.random.default_rng(0), wrong=0.0, give_up=0.0)
    assert len(answer) == 4 * prompt.answer.hops + 3 <= task.max_new_tokens
    assert task.judge(prompt, answer) is Verdict.RIGHT
    for cut in range(len(answer)):
        assert task.judge(prompt, answer[:cut]) is Verdict.UNPARSABLE


def test_faults_make_wrong_answers_at_about_their_rate() -> None:
    task = make()
    rng = np.random.default_rng(1)
    verdicts = [
        task.judge(p, task.demonstration(p, rng, wrong=0.08, give_up=0.03))
        for p in task.prompts("train", 0, 600)
    ]
    assert 0.55 < verdicts.count(Verdict.RIGHT) / 600 < 0.85
    assert set(verdicts) <= {Verdict.RIGHT, Verdict.WRONG, Verdict.UNPARSABLE}
    given_up = [task.demonstration(p, rng, 0.0, 1.0) for p in task.prompts("train", 0, 400)]
    assert all(len(a) == 3 for a in given_up)
    right = [
        task.judge(p, a) is Verdict.RIGHT
        for p, a in zip(task.prompts("train", 0, 400), given_up, strict=True)
    ]
    assert 0.17 < np.mean(right) < 0.34, "a guess is right one time in four chains"


def test_verdicts() -> None:
    task = make()
    (prompt,) = task.prompts("evaluate", 0, 1)
    label = prompt.answer.label
    other = next(x for x in prompt.answer.labels if x != label)
    key = prompt.tokens[-2]
    right, wrong, unparsable = Verdict.RIGHT, Verdict.WRONG, Verdict.UNPARSABLE
    for tokens, verdict in [
        ([sym.HASH, label, sym.EOS], right),
        ([key, sym.ARROW, other, sym.SEMICOLON, sym.HASH, label, sym.EOS], right),
        ([sym.HASH, other, sym.EOS, sym.HASH, label, sym.EOS], right),
        ([sym.HASH, other, sym.EOS], wrong),
        ([sym.HASH, key, sym.EOS], wrong),
        ([sym.HASH, label], unparsable),
        ([label, sym.EOS], unparsable),
        ([sym.HASH, label, sym.EOS, sym.EOS], unparsable),
        ([sym.HASH, label, label, sym.EOS], unparsable),
        ([sym.EOS], unparsable),
        ([], unparsable),
    ]:
        assert task.judge(prompt, tokens) is verdict, tokens


@pytest.mark.parametrize("seed", range(5))
def test_random_tokens_are_never_right_by_chance_of_form(seed: int) -> None:
    task = make()
    rng = np.random.default_rng(seed)
    for prompt in task.prompts("evaluate", 0, 50):
        tokens = rng.integers(0, len(sym.SYMBOLS), 30).tolist()
        ended = tokens[-1] == sym.EOS and tokens[-3] == sym.HASH
        assert (task.judge(prompt, tokens) is Verdict.UNPARSABLE) != ended
