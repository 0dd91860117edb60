"""reasoning_gym as a task: disjoint splits, the dataset's own judging, clear refusals."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.tasks import SPLITS, make_task
from sparrow_lab.tasks.base import Verdict
from sparrow_lab.tasks.reasoning_gym import ReasoningGymTask
from tests.tasks.texts import byte_tokenizer


def gym(dataset: str | None, **params: Any) -> ReasoningGymTask:
    config = TaskConfig(name="reasoning_gym", dataset=dataset, params=params)
    task = make_task(config, byte_tokenizer())
    assert isinstance(task, ReasoningGymTask)
    return task


def say(task: ReasoningGymTask, text: str) -> list[int]:
    return [*task.tokenizer(text).input_ids, task.stop_tokens[0]]


def test_splits_share_no_question_even_where_there_are_few() -> None:
    """Sums of two digits: fewer than 200 questions, so splits by seed alone would overlap."""
    task = gym("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    questions = {
        split: {task.tokenizer.decode(list(p.tokens)) for p in task.prompts(split, 0, 15)}
        for split in SPLITS
    }
    everything = [q for split in SPLITS for q in questions[split]]
    assert len(everything) == len(set(everything))
    for split in ("calibrate", "verify", "evaluate"):
        assert len(questions[split]) == 15


def test_any_slice_comes_again() -> None:
    first, second = gym("gsm_symbolic"), gym("gsm_symbolic")
    whole = first.prompts("train", 0, 12, seed=3)
    assert second.prompts("train", 8, 4, seed=3) == whole[8:]
    assert second.prompts("train", 0, 12, seed=4) != whole
    measured = first.prompts("calibrate", 0, 6)
    assert second.prompts("calibrate", 4, 2, seed=9) == measured[4:]
    assert [p.answer for p in second.prompts("calibrate", 0, 6)] == [p.answer for p in measured]
    assert len({p.id for p in measured}) == 6


def test_prompt_holds_the_question_and_the_instruction() -> None:
    task = gym("chain_sum", instruction="Say it loud.", system="You count.")
    prompt = task.prompts("train", 0, 1)[0]
    text = task.tokenizer.decode(list(prompt.tokens))
    assert text == (
        f"<|im_start|>system\nYou count.<|im_end|>\n<|im_start|>user\n{prompt.answer['question']}"
        "\n\nSay it loud.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_prompt_lengths_are_kept_to() -> None:
    task = gym("needle_haystack", min_prompt_tokens=1500, max_prompt_tokens=2500)
    lengths = [len(p.tokens) for p in task.prompts("evaluate", 0, 5)]
    assert min(lengths) >= 1500 and max(lengths) <= 2500


def test_the_dataset_judges() -> None:
    task = gym("chain_sum")
    prompt = task.prompts("evaluate", 0, 1)[0]
    right = prompt.answer["answer"]
    assert task.judge(prompt, say(task, f"so <answer>{right}</answer>")) is Verdict.RIGHT
    assert task.judge(prompt, say(task, f"so \\boxed{{{right}}}")) is Verdict.RIGHT
    assert task.judge(prompt, say(task, f"<answer>{right}0</answer>")) is Verdict.WRONG
    assert task.judge(prompt, say(task, f"it is {right}")) is Verdict.UNPARSABLE
    assert task.judge(prompt, say(task, f"<think><answer>{right}</answer>")) is Verdict.UNPARSABLE
    assert task.judge(prompt, []) is Verdict.UNPARSABLE


def test_partial_credit_is_not_right() -> None:
    task = gym("countdown")
    prompt = task.prompts("train", 0, 1)[0]
    assert 0 < task.source.chunk(0).score_answer("1", prompt.answer) < 1
    assert task.judge(prompt, say(task, "<answer>1</answer>")) is Verdict.WRONG


def test_a_scorer_that_raises_is_a_crash() -> None:
    task = gym("prime_factorization")
    prompt = task.prompts("train", 0, 1)[0]
    with pytest.raises(ValueError, match="invalid literal"):
        task.source.chunk(0).score_answer("two times three", prompt.answer)
    assert task.judge(prompt, say(task, "<answer>two times three</answer>")) is Verdict.CRASH


def test_the_caller_s_random_numbers_do_not_change() -> None:
    """pool_matrix seeds numpy's global generator for each item."""
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    gym("pool_matrix").prompts("train", 0, 3)
    assert (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("dataset", "params", "words"),
    [
        ("gsm_symbolik", {}, "did you mean 'gsm_symbolic'"),
        (None, {}, "needs the name of a dataset"),
        ("chain_sum", {"min_term": 2}, "did you mean 'min_terms'"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "refuses its options"),
        ("chain_sum", {"min_terms": "two"}, "refuses its options"),
        ("chain_sum", {"seed": 3}, "set by the splits"),
        ("chain_sum", {"instruction": 3}, "valid string"),
        ("chain_sum", {"min_prompt_tokens": 100_000}, "100000 to any number of prompt tokens"),
    ],
)
def test_mistakes_are_named(dataset: str | None, params: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        gym(dataset, **params).prompts("train", 0, 1)


def test_too_few_questions_are_counted() -> None:
    task = gym("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    with pytest.raises(
        UserError, match=r"about \d+ different questions for 'verify'; asked for 999"
    ):
        task.prompts("verify", 0, 999)


def test_tiny_models_cannot_read_it() -> None:
    with pytest.raises(UserError, match="needs a model that reads text"):
        make_task(TaskConfig(name="reasoning_gym", dataset="chain_sum"), None)
