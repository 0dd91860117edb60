"""Judging mathematical answers with math-verify, in processes that can be killed."""

from __future__ import annotations

from sparrow_lab.tasks.base import Verdict
from sparrow_lab.tasks.judge_pool import JudgePool, Outcome, judge_pool
from sparrow_lab.tasks.text import final_answer

LIMIT_S = 5.0
"""Processor seconds of one check."""

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

    Raises:
        Exception: whatever the parser or sympy raise; the pool counts it as a crash.
    """
    import logging

    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    if _plain(answer) == _plain(final):
        return Verdict.RIGHT.value
    gold, found = _parse(answer), _parse(final)
    if not any(not isinstance(x, str) for x in found):
        return Verdict.UNPARSABLE.value
    right = verify(gold, found, timeout_seconds=None, raise_on_error=True)
    return (Verdict.RIGHT if right else Verdict.WRONG).value


def _plain(text: str) -> str:
    """Without the marks that only say "this is the answer", for comparing strings."""
    text = " ".join(text.split()).strip("$ ").rstrip(".")
    inner = text.removeprefix("\\boxed{")
    return inner[:-1] if inner != text and inner.endswith("}") else text


def _parse(text: str) -> list[object]:
    """Expressions in an answer, as LaTeX and as plain text; empty when it is neither."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    targets = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    marked = text if "$" in text or "\\boxed" in text else f"${text}$"
    found: list[object] = []
    for form in (marked, text):
        found = parse(form, targets, parsing_timeout=None, raise_on_error=True)
        if any(not isinstance(x, str) for x in found):
            break
    return found
