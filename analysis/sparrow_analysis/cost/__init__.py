"""What generation costs: FLOPs and bytes of a decode step, whole trajectories, time estimates.

Two measures, for two questions. eFLOPs (FLOPs + intensity x bytes) rank schedules, as in the
Sparrow paper; they over-predict speed-ups by about two. The roofline with attainable rates and an
overhead a layer estimates time.
"""

from sparrow_analysis.cost.hardware import (
    DEFAULT_HARDWARE,
    Hardware,
    hardware_names,
    load_hardware,
)
from sparrow_analysis.cost.known import known_models, load_shape
from sparrow_analysis.cost.run import RunEstimate, estimate_parts, estimate_run, rl_step
from sparrow_analysis.cost.shape import ModelShape
from sparrow_analysis.cost.step import Cost, StepCost, decode_step_cost, forward_cost, speedup
from sparrow_analysis.cost.trajectory import (
    TrajectoryCost,
    decode_lengths,
    largest_batch,
    rollout_seconds,
    scheduled_step_cost,
    step_seconds,
    trajectory_cost,
)

__all__ = [
    "DEFAULT_HARDWARE",
    "Cost",
    "Hardware",
    "ModelShape",
    "RunEstimate",
    "StepCost",
    "TrajectoryCost",
    "decode_lengths",
    "decode_step_cost",
    "estimate_parts",
    "estimate_run",
    "forward_cost",
    "hardware_names",
    "known_models",
    "largest_batch",
    "load_hardware",
    "load_shape",
    "rl_step",
    "rollout_seconds",
    "scheduled_step_cost",
    "speedup",
    "step_seconds",
    "trajectory_cost",
]
