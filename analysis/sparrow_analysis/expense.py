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

from sparrow_analysis.cost import DEFAULT_HARDWARE, decode_step_cost, load_hardware, load_shape
from sparrow_analysis.cost.shape import ModelShape
from sparrow_lab.errors import UserError

Floats = npt.NDArray[np.float64]
Landmark = Literal["mean", "minmax"]


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
