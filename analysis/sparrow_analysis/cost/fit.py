"""Coefficients of the time model from measured steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparrow_analysis.cost.hardware import Hardware


@dataclass(frozen=True)
class RooflineFit:
    """A fitted profile and how well it explains the measurements.

    Attributes:
        hardware: the profile with fitted shares and overhead. A share is 1 where the data do not
            show that part (its coefficient came out as zero).
        relative_error: median of |predicted - measured| / measured, on the same data.
    """

    hardware: Hardware
    relative_error: float


def fit_roofline(
    hardware: Hardware,
    flops: npt.ArrayLike,
    moved: npt.ArrayLike,
    seconds: npt.ArrayLike,
    layers: int,
) -> RooflineFit:
    """Fit seconds = flops / (a peak) + bytes / (b bandwidth) + c layers, all parts at least 0.

    The additive form is linear and, unlike the maximum, shows both shares in one fit; decode is
    bound by memory, so the difference to the roofline is small. Errors are weighted relatively.

    Args:
        flops, moved, seconds: [steps], each of a whole batch.

    Raises:
        ValueError: fewer than three steps, or a time that is not positive and finite.
    """
    work = np.stack(
        [np.asarray(flops, float) / hardware.flops, np.asarray(moved, float) / hardware.bandwidth]
    )
    measured = np.asarray(seconds, dtype=float)
    if measured.size < 3:
        raise ValueError(f"three coefficients need at least three steps, found {measured.size}")
    if not (np.isfinite(measured) & (measured > 0)).all() or not np.isfinite(work).all():
        raise ValueError("work and times must be finite and times positive")
    from scipy.optimize import nnls

    design = np.stack([work[0], work[1], np.full(measured.size, float(layers))], axis=1)
    (a, b, overhead), _ = nnls(design / measured[:, None], np.ones(measured.size))
    predicted = design @ np.array([a, b, overhead])
    fitted = replace(
        hardware,
        flops_share=float(1 / a) if a > 0 else 1.0,
        bandwidth_share=float(1 / b) if b > 0 else 1.0,
        layer_overhead=float(overhead),
        source=f"fitted to {measured.size} measured steps; peaks: {hardware.source}",
    )
    return RooflineFit(fitted, float(np.median(np.abs(predicted - measured) / measured)))
