"""Permutation walk: the table of a prompt, demonstrations and verdicts by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.tasks import symbols as sym
from sparrow_lab.tasks.base import Prompt, Verdict
from sparrow_lab.tasks.permutation_walk import LINE, PermutationWalk


def make(**params: Any) -> PermutationWalk:
    task = {"name": "permutation_walk", "params": params}
    return PermutationWalk(TaskConfig.model_validate(task))


def faultless(task: PermutationWalk, prompt: Prompt) -> list[int]:
    return task.demonstration(prompt, np.random.default_rng(0), wrong=0.0, give_up=0.0)


@st.composite
def options(draw: st.DrawFn) -> dict[str, int]:
    low = draw(st.integers(1, 28))
    return {
        "pairs": draw(st.integers(2, 24)),
        "steps_min": low,
        "steps_max": draw(st.integers(low, 28)),
        "labels": draw(st.integers(2, 8)),
    }


@settings(max_examples=50)
@given(params=options(), index=st.integers(0, 999))
def test_the_text_holds_a_permutation_and_its_walk_is_right(
    params: dict[str, int], index: int
) -> None:
    task = make(**params)
    (prompt,) = task.prompts("train", index, 1, seed=2)
    body = np.array(prompt.tokens[1:-4]).reshape(-1, 4)
    assert len(body) == params["pairs"]
    assert (body[:, 1] == sym.ARROW).all() and (body[:, 3] == sym.SEMICOLON).all()
    table = dict(zip(body[:, 0].tolist(), body[:, 2].tolist(), strict=True))
    assert sorted(table) == sorted(table.values())
    question, start, count, colon = prompt.tokens[-4:]
    assert (question, colon) == (sym.QUESTION, sym.COLON)
    steps = count - sym.COUNT0
    assert params["steps_min"] <= steps <= params["steps_max"]
    answer, node = faultless(task, prompt), start
    assert len(answer) == LINE * steps + 3 <= task.max_new_tokens
    for i in range(steps):
        line = answer[LINE * i : LINE * (i + 1)]
        assert line[2:6] == [node, sym.ARROW, table[node], sym.SEMICOLON]
        assert line[6] == sym.COUNT0 + steps - 1 - i
        node = table[node]
    label = sym.LABEL0 + (node - sym.KEY0) % params["labels"]
    assert answer[-3:] == [sym.HASH, label, sym.EOS]
    assert task.judge(prompt, answer) is Verdict.RIGHT


@pytest.mark.parametrize("steps", [1, 5, 10])
@pytest.mark.parametrize("tolerance", [0.5, 0.8, 1.0])
def test_so_many_lines_may_be_wrong_and_no_more(steps: int, tolerance: float) -> None:
    task = make(steps_min=steps, steps_max=steps, tolerance=tolerance)
    (prompt,) = task.prompts("evaluate", 3, 1)
    for wrong in range(steps + 1):
        answer = faultless(task, prompt)
        for line in range(wrong):
            answer[LINE * line + 6] = sym.COUNT0 + steps  # a count that is never asked for
        enough = steps - wrong >= tolerance * steps - 1e-9
        expected = Verdict.RIGHT if enough else Verdict.WRONG
        assert task.judge(prompt, answer) is expected, (wrong, steps, tolerance)


def test_a_jump_astray_costs_one_line_when_the_walk_goes_on_from_there() -> None:
    task = make(steps_min=10, steps_max=10, tolerance=0.9)
    (prompt,) = task.prompts("evaluate", 0, 1)
    key = prompt.answer
    answer, node = [], key.start
    for i in range(10):
        value = key.successor[node]
        if i == 4:
            value = next(k for k in key.successor if k not in (value, node))
        answer += [sym.STEP, sym.THEN, node, sym.ARROW, value, sym.SEMICOLON, sym.COUNT0 + 9 - i]
        node = value
    answer += [sym.HASH, sym.LABEL0 + (node - sym.KEY0) % 4, sym.EOS]
    assert task.judge(prompt, answer) is Verdict.RIGHT
    assert task.judge(prompt, answer[:-2] + [answer[-2] ^ 1, sym.EOS]) is Verdict.WRONG
    stay = list(answer)
    here = stay[LINE * 5 + 2]  # let the next line start elsewhere than the walk is
    stay[LINE * 5 + 2] = next(k for k in key.successor if k != here)
    assert task.judge(prompt, stay) is Verdict.WRONG


def test_verdicts_of_form() -> None:
    task = make()
    (prompt,) = task.prompts("evaluate", 1, 1)
    answer = faultless(task, prompt)
    other = sym.LABEL0 + (answer[-2] - sym.LABEL0 + 1) % 4
    for tokens, verdict in [
        (answer, Verdict.RIGHT),
        ([*answer[:-2], other, sym.EOS], Verdict.WRONG),
        (answer[:-1], Verdict.UNPARSABLE),
        ([*answer[:-1], sym.SEMICOLON], Verdict.UNPARSABLE),
        (answer[LINE:], Verdict.UNPARSABLE),
        ([*answer[:LINE], *answer], Verdict.UNPARSABLE),
        ([sym.HASH, answer[-2], sym.EOS], Verdict.UNPARSABLE),
        ([], Verdict.UNPARSABLE),
    ]:
        assert task.judge(prompt, tokens) is verdict
    for cut in range(len(answer)):
        assert task.judge(prompt, answer[:cut]) is Verdict.UNPARSABLE


def test_a_walk_that_ends_outside_the_table_is_wrong_and_no_crash() -> None:
    task = make(pairs=4, steps_min=3, steps_max=3, tolerance=0.5)
    (prompt,) = task.prompts("evaluate", 0, 1)
    answer = faultless(task, prompt)
    foreign = next(k for k in range(sym.KEY0, sym.KEY0 + 24) if k not in prompt.answer.successor)
    for token in (foreign, sym.PAD, len(sym.SYMBOLS) - 1):
        answer[LINE * 2 + 4] = token
        assert task.judge(prompt, answer) is Verdict.WRONG


def test_faults_leave_room_for_learning() -> None:
    task = make()
    rng = np.random.default_rng(1)
    prompts = task.prompts("train", 0, 300)
    verdicts = [
        task.judge(p, task.demonstration(p, rng, wrong=0.16, give_up=0.004)) for p in prompts
    ]
    assert 0.4 < verdicts.count(Verdict.RIGHT) / 300 < 0.9
    early = [task.judge(p, task.demonstration(p, rng, 0.0, 1.0)) for p in prompts]
    assert set(early) == {Verdict.UNPARSABLE}
