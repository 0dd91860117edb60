"""Whether the device that a model is asked to be on is there, known before any weight is read."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_device(device: str, where: str) -> None:
    """Refuse a GPU where torch can use none; other devices are left to torch.

    Args:
        where: the field or option that asks for it.

    Raises:
        UserError: it says what is missing.
    """
    import torch

    if device.split(":")[0] != "cuda" or torch.cuda.is_available():
        return
    raise UserError(f"found '{device}', but {_why_not()}; allowed here: cpu", where)


def where_is(model: PreTrainedModel) -> str:
    """`cpu`, or a GPU with its name, for a log."""
    import torch

    place = next(model.parameters()).device
    return str(place) if place.type != "cuda" else f"{place} ({torch.cuda.get_device_name(place)})"


def _why_not() -> str:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
    return f"torch sees no GPU on {platform.node()}{hidden}"
