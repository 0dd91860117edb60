"""A stage that is wrong in a quiet way."""

from __future__ import annotations

from typing import Any

from sparrow_lab.stages.context import StageContext


def returns_an_error(ctx: StageContext) -> Any:
    """Catch its own exception and return it, as some training functions do."""
    try:
        raise ValueError("caught by itself")
    except ValueError as error:
        return error


def where(ctx: StageContext) -> dict[str, Any]:
    """Say where the code lies that runs, and which heavy packages a worker has imported."""
    import sys

    import sparrow_lab

    heavy = [name for name in ("mlflow", "submitit", "torch", "optuna") if name in sys.modules]
    return {"metrics": {}, "code": str(sparrow_lab.__file__), "heavy": heavy}


def evaluate_slowly(ctx: StageContext) -> dict[str, Any]:
    """Take ten seconds at the first attempt and a moment at any other; nothing is saved."""
    import time

    for _ in range(100 if ctx.attempt.number == 1 else 1):
        ctx.check()
        time.sleep(0.1)
    return {"metrics": {"attempt": float(ctx.attempt.number)}, "time": {}}
