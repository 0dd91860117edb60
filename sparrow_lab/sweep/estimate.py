"""How long planned points take, roughly, from the cost model; for the preview only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow_lab.config.schema import PointConfig, TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import PlannedPoint

if TYPE_CHECKING:
    from sparrow_analysis.cost import ModelShape

START_S = 4.0
"""Seconds until a worker has imported torch and transformers and read a model; evaluations
follow their training in its process."""

PROMPT = 128
ANSWER = 256
"""Lengths where the task does not say: tokens of a prompt, and of an answer without a cap."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt and, at most, of an answer."""

    prompt: int
    answer: int


class Estimator:
    """Seconds of points on one worker; equal work is worked out once.

    Args:
        hardware: a profile of the cost model; None takes the CPU, and an accelerator for models
            on a GPU, but for the built-in tiny ones, whose time there is not that of their sums.
    """

    def __init__(self, hardware: str | None = None) -> None:
        self.hardware = hardware
        self.used: set[str] = set()
        self._seconds: dict[str, float | None] = {}
        self._lengths: dict[str, Lengths] = {}

    def seconds(self, point: PlannedPoint) -> float | None:
        """Return an upper estimate, or None where the model's shape is not known.

        A schedule that is still to be calibrated counts as dense, an answer as long as the
        task lets it be.
        """
        work = {k: v for k, v in point.config.items() if k != "seed"}
        key = point.stage + json.dumps(work, sort_keys=True)
        if key not in self._seconds:
            self._seconds[key] = self._estimate(point)
        return self._seconds[key]

    def _estimate(self, point: PlannedPoint) -> float | None:
        from sparrow_analysis.cost import DEFAULT_HARDWARE, estimate_run, load_hardware
        from sparrow_lab.models.tiny import TINY

        config = PointConfig.model_validate(point.config)
        shape = model_shape(config.model.name)
        if shape is None:
            return None
        large = config.model.device == "cuda" and config.model.name not in TINY
        profile = self.hardware or (DEFAULT_HARDWARE if large else "cpu-2-core")
        self.used.add(profile)
        lengths = self._task_lengths(config.task)
        work = estimate_run(
            shape,
            load_hardware(profile),
            config,
            point.stage,
            prompt=lengths.prompt,
            tokens=lengths.answer,
        )
        return work + (0.0 if point.stage == "evaluate" else START_S)

    def _task_lengths(self, task: TaskConfig) -> Lengths:
        key = task.model_dump_json()
        if key not in self._lengths:
            self._lengths[key] = task_lengths(task)
        return self._lengths[key]


def model_shape(name: str) -> ModelShape | None:
    """Return the shape of a model that is built in, on this disk or well known; else None."""
    from sparrow_analysis.cost import ModelShape, load_shape
    from sparrow_lab.models.tiny import TINY
    from sparrow_lab.tasks.symbols import SYMBOLS

    if name in TINY:
        tiny = TINY[name]
        sizes: dict[str, Any] = {
            "model_type": "qwen3",
            "num_hidden_layers": tiny.layers,
            "hidden_size": tiny.hidden,
            "num_attention_heads": tiny.heads,
            "num_key_value_heads": tiny.kv_heads,
            "head_dim": tiny.head_dim,
            "intermediate_size": tiny.intermediate,
            "vocab_size": len(SYMBOLS),
            "tie_word_embeddings": True,
        }
        return ModelShape.from_config(sizes, name)
    try:
        return load_shape(str(Path(name)))
    except UserError:
        return None


def task_lengths(task: TaskConfig) -> Lengths:
    """Ask a built-in task; other tasks would need the model's tokenizer, and get a guess."""
    if task.name not in {"pointer_chase", "permutation_walk"}:
        return Lengths(PROMPT, task.max_new_tokens or ANSWER)
    from sparrow_lab.tasks import make_task

    made = make_task(task)
    return Lengths(len(made.prompts("train", 0, 1)[0].tokens), made.max_new_tokens)
