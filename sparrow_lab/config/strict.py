"""The base of every section of an experiment or site file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Base of all sections: unknown keys fail, nothing is coerced, instances are frozen.

    An integer is accepted where a float belongs (and becomes one), never the reverse;
    infinite numbers and NaN are refused.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
