"""Mathematical answers: equal in value, from any thread, and killed at the limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sparrow_lab.tasks.base import Verdict
from sparrow_lab.tasks.judge_pool import judge_pool
from sparrow_lab.tasks.math import judge_math

SLOW = ("\\boxed{9^{9^{9^9}}}", "<answer>10000000000!</answer>")
"""Ten characters that keep the parser busy for hours."""


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("42", "so \\boxed{42}", "right"),
        ("\\boxed{42}", "<answer>42</answer>", "right"),
        ("$\\frac{1}{2}$", "<answer>0.5</answer>", "right"),
        ("1/2", "The answer is \\frac{2}{4}.", "right"),
        ("1,234", "<answer>1234</answer>", "right"),
        ("x^2+2x+1", "\\boxed{(x+1)^2}", "right"),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}", "right"),
        ("3", "\\boxed{4}", "wrong"),
        ("3", "<answer>-3</answer>", "wrong"),
        ("9", "<answer>3 or 9</answer>", "wrong"),
        ("9", "<answer>1 2 9</answer>", "wrong"),
        ("9", "<answer>3\n9</answer>", "wrong"),
        ("9", "<answer>9**2</answer>", "wrong"),
        ("81", "<answer>9**2</answer>", "right"),
        ("1000", "<answer>1e3</answer>", "right"),
        ("7", "<answer>The answer is 7.</answer>", "right"),
        ("listen", "<answer>silent</answer>", "wrong"),
        ("north", "<answer>North</answer>", "right"),
        ("9 cm", "<answer>9</answer>", "right"),
        ("3", "1 + 2 = 3", "unparsable"),
        ("3", "<think>so \\boxed{3}", "unparsable"),
        ("3", "\\boxed{", "unparsable"),
        ("3", "<answer>???</answer>", "unparsable"),
        ("Paris", "<answer>Paris</answer>", "right"),
    ],
)
def test_verdicts(answer: str, text: str, expected: str) -> None:
    assert judge_math(answer, text) is Verdict(expected)


def test_a_right_answer_is_right_from_worker_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        calls = [
            threads.submit(judge_math, "1/2", f"<answer>{n}/{2 * n}</answer>") for n in range(1, 9)
        ]
        assert [call.result() for call in calls] == [Verdict.RIGHT] * 8


@pytest.mark.parametrize("text", SLOW)
def test_a_slow_answer_is_killed_and_the_next_one_is_judged(text: str) -> None:
    pool = judge_pool()
    before = pool.timeouts
    assert judge_math("5", text, timeout_s=0.3) is Verdict.TIMEOUT
    assert pool.timeouts == before + 1
    assert pool.places() == pool.size
    assert judge_math("5", "\\boxed{5}") is Verdict.RIGHT


def test_a_burst_has_no_false_timeouts() -> None:
    with ThreadPoolExecutor(50) as threads:
        calls = [threads.submit(judge_math, str(n), f"\\boxed{{{n}}}", 2.0) for n in range(200)]
        assert {call.result() for call in calls} == {Verdict.RIGHT}


def test_only_right_earns() -> None:
    assert [v.reward for v in Verdict] == [1.0, 0.0, 0.0, 0.0, 0.0]
