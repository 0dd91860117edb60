"""Judging mathematical answers with math-verify, in processes that can be killed."""

from __future__ import annotations

import re
from typing import Any

from sparrow_lab.tasks.base import Verdict
from sparrow_lab.tasks.judge_pool import JudgePool, Outcome, judge_pool
from sparrow_lab.tasks.text import final_answer

LIMIT_S = 5.0
"""Processor seconds of one check."""

_WORDS = re.compile(r"[A-Za-z]{3}[A-Za-z ]*")
_SCIENTIFIC = re.compile(r"\b(\d+(?:\.\d*)?)[eE]([+-]?\d+)\b")
_VERDICTS = {v.value: v for v in Verdict}


def judge_math(
    answer: str, text: str, timeout_s: float = LIMIT_S, pool: JudgePool | None = None
) -> Verdict:
    """Compare the final answer of a text with the right one. Works from any thread.

    Args:
        answer: the right answer, LaTeX or plain; `\\boxed{…}` and `$…$` around it are fine.
        text: the whole generated text. Without a marked final answer it is unparsable.
        timeout_s: processor seconds before the check is killed and counted as a timeout.

    Returns:
        right, wrong, unparsable (no final answer, or one that is no expression), timeout, or
        crash (the checker failed on it). Two equal strings are right even if neither parses.
        An answer that is wider than the right one ("3 or 9") is wrong.
    """
    final = final_answer(text)
    if final is None:
        return Verdict.UNPARSABLE
    outcome = (pool or judge_pool()).run(
        "sparrow_lab.tasks.math:compare", answer, final, limit_s=timeout_s
    )
    return verdict_of(outcome)


def verdict_of(outcome: Outcome) -> Verdict:
    """The verdict of a check whose value is a verdict's name."""
    if outcome.status == "timeout":
        return Verdict.TIMEOUT
    return _VERDICTS.get(str(outcome.value), Verdict.CRASH)


def warm_up(*_: str) -> None:
    """In a judge, before its clock starts: import and exercise the parser."""
    global _warm
    if not _warm:
        compare("1", "\\frac{2}{2}")
        _warm = True


_warm = False


def compare(answer: str, final: str) -> str:
    """Runs in a judge: the verdict's name. math-verify's own timeouts are off; the judge is killed.

    An answer in words ("north") is compared as text: as an expression it would be a product of
    letters, and equal to every anagram.

    Raises:
        Exception: whatever the parser or sympy raise; the pool counts it as a crash.
    """
    import logging

    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    right, given = _plain(answer), _plain(final)
    if right == given:
        return Verdict.RIGHT.value
    if _WORDS.fullmatch(right):
        same = right.casefold() == given.casefold()
        return (Verdict.RIGHT if same else Verdict.WRONG).value
    found = _parse(final)
    if not found:
        return Verdict.UNPARSABLE.value
    equal = verify(_parse(answer), found, timeout_seconds=None, raise_on_error=True)
    return (Verdict.RIGHT if equal else Verdict.WRONG).value


def _plain(text: str) -> str:
    """Without the marks that only say "this is the answer", for comparing strings."""
    text = " ".join(text.split()).strip("$ ").rstrip(".")
    inner = text.removeprefix("\\boxed{")
    return inner[:-1] if inner != text and inner.endswith("}") else text


def _parse(text: str) -> list[Any]:
    """The expression that a whole answer is; empty when it is none.

    Only LaTeX is looked for, and all of the text must be it unless it marks a part with `$` or
    `\\boxed`: math-verify's search for plain numbers takes the 9 out of "9**9" or of "3 9".
    """
    from math_verify import LatexExtractionConfig, parse

    text = " ".join(text.split()).replace("**", "^")
    text = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text)
    marked = text if "$" in text or "\\boxed" in text else f"${text}$"
    found: list[Any] = parse(
        marked,
        (LatexExtractionConfig(boxed_match_priority=0),),
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found
