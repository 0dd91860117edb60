"""Which engine a model gets: both give the same batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.lora import has_adapters
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sparrow_lab.rollout.paged.engine import PagedEngine


BESIDE_TRAINING = 0.5
"""Share of a GPU that weights and KV cache may fill where updates need the rest: gradients, moments
of the optimizer and the activations of a packed pass, none of which is there yet."""


def make_engine(
    model: PreTrainedModel, schedule: Schedule, max_batch: int = 256, *, trains: bool = False
) -> RolloutEngine | PagedEngine:
    """Pages on a GPU and for a model with adapters; else contiguous rows, which are faster for tiny
    models on a CPU.

    Args:
        trains: the model is trained between rollouts; call the engine's `refresh` after each update
            and after other weights were loaded, since both engines keep fused copies of them.
    """
    on_gpu = next(model.parameters()).is_cuda
    if on_gpu or has_adapters(model):
        from sparrow_lab.rollout.paged.engine import PagedEngine

        share = BESIDE_TRAINING if trains and on_gpu else None
        return PagedEngine(model, schedule, max_batch, memory=share)
    return RolloutEngine(model, schedule, max_batch)
