"""What a token costs under a budget, so that page sizes can be compared on one axis.

Two measures. *Reads*: tokens of KV that one sparse layer reads for one generated token, landmarks
counted as the share of a token that they are (a mean landmark is a key without a value: half a
token; min/max bounds are two keys). It needs no model. *eFLOPs*: the cost model's figure over all
layers, for models whose shape is known. Both rank; neither predicts time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from sparrow_analysis.cost import (
    DEFAULT_HARDWARE,
    decode_step_cost,
    load_hardware,
    load_shape,
    step_seconds,
)
from sparrow_analysis.cost.shape import ModelShape
from sparrow_lab.errors import UserError

Floats = npt.NDArray[np.float64]
Landmark = Literal["mean", "minmax"]
Score = Literal["group_mean", "softmax_max"]

SMALL_HARDWARE = "cpu-2-core"
SMALL_PARAMETERS = 10_000_000
"""Models with fewer parameters are taken to run on a CPU, all others on the default accelerator."""


def reads(
    attended: npt.ArrayLike,
    budget: npt.ArrayLike,
    length: npt.ArrayLike,
    page_size: npt.ArrayLike,
    landmark: str = "mean",
) -> Floats:
    """KV tokens read a step in a sparse layer: those attended to, and the landmarks of all pages.

    Landmarks are read only where there is a choice, `budget` below `length`. A NaN budget is full
    attention. All arguments broadcast; NaN in, NaN out.
    """
    vectors = 2 if landmark == "minmax" else 1
    at = np.asarray(length, np.float64)
    chooses = np.nan_to_num(np.asarray(budget, np.float64), nan=np.inf) < at
    share = vectors / 2 * at / np.asarray(page_size, np.float64)
    return np.asarray(np.asarray(attended, np.float64) + np.where(chooses, share, 0.0))


def shape_of(model: str) -> ModelShape | None:
    """The shape of a model that the cost model knows by name; None for any other."""
    try:
        return load_shape(model)
    except UserError:
        return None


def eflops(
    shape: ModelShape | None,
    budget: npt.ArrayLike,
    length: npt.ArrayLike,
    page_size: int,
    dense_layers: int = 2,
    landmark: Landmark = "mean",
) -> Floats:
    """eFLOPs of one generated token at each length on the default hardware; NaN without a shape.

    Weight bytes are left out: they are shared by the batch and the same for every budget.
    """
    at = np.asarray(length, np.float64)
    if shape is None:
        return np.full(at.shape, np.nan)
    allowed = np.nan_to_num(np.asarray(budget, np.float64), nan=np.inf)
    cost = decode_step_cost(
        shape, at, 1, allowed, page_size, dense_layers, landmark=landmark, read_weights=False
    )
    return cost.total.eflops(load_hardware(DEFAULT_HARDWARE).intensity)


def hardware_for(shape: ModelShape) -> str:
    """The profile on which a model's speed is modelled."""
    return SMALL_HARDWARE if shape.parameters < SMALL_PARAMETERS else DEFAULT_HARDWARE


def decode_speedup(
    shape: ModelShape,
    budget: npt.ArrayLike,
    length: npt.ArrayLike,
    weights: npt.ArrayLike,
    page_size: int,
    dense_layers: int,
    batch: int,
    *,
    landmark: Landmark = "mean",
    score: Score = "group_mean",
    element_bytes: float = 2,
) -> float:
    """Modelled seconds of dense decode steps over those of sparse ones, on `hardware_for`.

    Args:
        budget, length, weights: [lengths]; how many steps run at each length. NaN is dense.
    """
    at, hardware = np.asarray(length, np.float64), load_hardware(hardware_for(shape))
    allowed = np.nan_to_num(np.asarray(budget, np.float64), nan=np.inf)
    seconds = []
    for budgets in (None, allowed):
        cost = decode_step_cost(
            shape,
            at,
            batch,
            budgets,
            page_size,
            dense_layers,
            score=score,
            landmark=landmark,
            element_bytes=element_bytes,
        )
        steps = step_seconds(cost, shape, hardware, batch)
        seconds.append(float(np.average(steps, weights=np.asarray(weights, np.float64))))
    return seconds[0] / seconds[1]
