"""Which engine a model gets: both give the same batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.lora import has_adapters
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sparrow_lab.rollout.paged.engine import PagedEngine


def make_engine(
    model: PreTrainedModel, schedule: Schedule, max_batch: int = 256
) -> RolloutEngine | PagedEngine:
    """Pages on a GPU and for a model with adapters; else contiguous rows, which are faster for tiny
    models on a CPU.
    """
    if next(model.parameters()).is_cuda or has_adapters(model):
        from sparrow_lab.rollout.paged.engine import PagedEngine

        return PagedEngine(model, schedule, max_batch)
    return RolloutEngine(model, schedule, max_batch)
