"""Every key of an experiment file, with its type, range, default and meaning.

Two kinds of field: those of `PointConfig` can change a result and enter the id of
a point; those of `SweepConfig` outside `base` (name, launch, tracking, report) say
how and where the work runs, and do not. The models are strict: an unknown key, a
string where a number belongs or a value out of range is an error, never a guess.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1
"""Part of every point id. Raise it only when the meaning of a field changes."""


class Strict(BaseModel):
    """Base of all sections: unknown keys fail, nothing is coerced, instances are frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelConfig(Strict):
    """Which weights are trained."""

    name: str = "tiny-s"
    """A built-in tiny model (tiny-s, tiny-m, tiny-l), a local folder, or a hub id."""
    warm_start: int = Field(0, ge=0)
    """Which of the shipped warm starts of a tiny model; ignored for other models."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of weights and of the rollout; logits are always at least float32."""


class TaskConfig(Strict):
    """Where prompts come from and how an answer is judged."""

    name: Literal["pointer_chase", "permutation_walk", "reasoning_gym", "jsonl"] = "pointer_chase"
    dataset: str | None = None
    """reasoning_gym: the dataset's name; jsonl: the file's path."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Options of the task itself; checked by the task, see `sparrow_lab.tasks`."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Cap on generated tokens; None takes the task's own."""


class Dense(Strict):
    """Full attention in rollout."""

    dense: Literal[True] = True


class Tau(Strict):
    """A calibrated schedule that holds p5 of acceptance at tau."""

    tau: float = Field(gt=0, le=1)


class Budget(Strict):
    """A fixed budget in tokens, all kept pages counted."""

    budget: int = Field(ge=1)


class ScheduleFile(Strict):
    """A schedule saved by `sparrow-lab schedule`."""

    file: str = Field(min_length=1)


class Preset(Strict):
    """One of the paper's 20 tables, for example `qwen3-1.7b-0.86`."""

    preset: str = Field(min_length=1)


ScheduleSource = Dense | Tau | Budget | ScheduleFile | Preset


class ReservedConfig(Strict):
    """Pages that are always kept, stated in tokens or in pages, never both.

    In tokens the same text is kept whatever the page size, so that page sizes can be
    compared: the pages that hold the first `first_tokens` and the last `last_tokens`
    positions. In pages it is the paper's rule: first 1, last 2.
    """

    first_tokens: int | None = Field(None, ge=0)
    last_tokens: int | None = Field(None, ge=1)
    first_pages: int | None = Field(None, ge=0)
    last_pages: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_unit(self) -> ReservedConfig:
        tokens = (self.first_tokens, self.last_tokens)
        pages = (self.first_pages, self.last_pages)
        if all(x is None for x in tokens + pages):
            object.__setattr__(self, "first_pages", 1)
            object.__setattr__(self, "last_pages", 2)
        elif any(x is not None for x in tokens) and any(x is not None for x in pages):
            raise ValueError("state reserved pages in tokens or in pages, not both")
        elif None in tokens and None in pages:
            raise ValueError("give both the first and the last reserved size, in one unit")
        return self


class SparsityConfig(Strict):
    """How the sparse actor attends."""

    page_size: int = Field(16, ge=1, le=1024)
    landmark: Literal["mean", "minmax"] = "mean"
    """Summary of a full page: mean of its keys (the paper's) or min/max bounds (Quest)."""
    score: Literal["group_mean", "softmax_max"] = "group_mean"
    """One query per KV head (the mean of its group), or per-head softmax with the group's max."""
    dense_layers: int = Field(2, ge=0)
    """The first layers that always attend to everything."""
    reserved: ReservedConfig = Field(default_factory=ReservedConfig)
    schedule: ScheduleSource = Field(default_factory=Dense)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("schedule") == "dense":
            data = {**data, "schedule": {"dense": True}}
        return data


class RolloutConfig(Strict):
    """Sampling of the actor."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0 keeps the whole vocabulary."""
    min_p: float = Field(0.0, ge=0, le=1)
    max_batch: int = Field(256, ge=1)
    """Sequences decoded at once."""


class CalibrateConfig(Strict):
    """Measurement of acceptance at many budgets, before any update."""

    prompts: int = Field(64, ge=2)
    samples: int = Field(2, ge=1)
    budgets: list[int] = Field(default_factory=list)
    """Budgets in tokens; empty takes a geometric ladder from the reserved pages to the context."""
    ladder: int = Field(10, ge=2)
    """Rungs of the geometric ladder."""
    bin_width: int = Field(16, ge=1)
    """Width of a length bin, in tokens."""
    min_prompts: int = Field(16, ge=1)
    """Bins reached by fewer prompts are left out."""
    bootstrap: int = Field(200, ge=0)
    """Resamples of prompts for the confidence interval."""
    confidence: float = Field(0.95, gt=0, lt=1)
    rule: Literal["estimate", "lower"] = "estimate"
    """A budget reaches tau when its p5, or the lower end of its interval, is at least tau."""
    estimator: Literal["exact", "top_k"] = "exact"
    top_k: int = Field(20, ge=1)


class TrainConfig(Strict):
    """GRPO on sparse rollouts (paper section 4)."""

    steps: int = Field(100, ge=1)
    prompts: int = Field(8, ge=1)
    """Prompts a step."""
    samples: int = Field(16, ge=2)
    """Samples a prompt: the group."""
    minibatches: int = Field(1, ge=1)
    epochs: int = Field(1, ge=1)
    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    clip_low: float = Field(0.2, ge=0, lt=1)
    clip_high: float = Field(0.28, ge=0)
    dual_clip: float | None = Field(None, gt=1)
    tis_cap: float | None = Field(2.0, gt=0)
    """Cap of the truncated importance weight; null switches the correction off."""
    advantage_std: bool = True
    """Divide a group's advantage by its standard deviation."""
    loss_average: Literal["token", "sequence", "fixed_length"] = "token"
    kl_coef: float = Field(0.0, ge=0)
    evaluate_every: int = Field(10, ge=1)
    evaluate_prompts: int = Field(128, ge=1)
    checkpoint_every: int = Field(25, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _betas_from_yaml(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("betas"), list):
            data = {**data, "betas": tuple(data["betas"])}
        return data


class VerdictConfig(Strict):
    """When a training run counts as collapsed; read by detectors and by the analysis."""

    metric: str = "evaluate/reward"
    fall: float = Field(0.25, gt=0, lt=1)
    """Collapsed when the metric falls by more than this share from its running peak ..."""
    floor: float | None = None
    """... or, if set, below this value ..."""
    stay: int = Field(2, ge=1)
    """... and stays there over at least this many of the last evaluations."""


class PointConfig(Strict):
    """One fully resolved configuration: every field here can change the result."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    task: TaskConfig = Field(default_factory=TaskConfig)
    sparsity: SparsityConfig = Field(default_factory=SparsityConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    calibrate: CalibrateConfig = Field(default_factory=CalibrateConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    seed: int = Field(0, ge=0)
    threads: int = Field(1, ge=1)
    """CPU threads of a worker; part of the id because sums depend on it."""


class LaunchConfig(Strict):
    """Where and how workers run; never part of an id."""

    parallel: int | None = Field(None, ge=1)
    """Workers at once; null fits the cores."""
    timeout_min: int = Field(720, ge=1)
    retries: int = Field(1, ge=0)
    """New attempts after a crash, per stage of a point."""
    grace_s: int = Field(30, ge=1)


class TrackingConfig(Strict):
    """Where MLflow's records go; never part of an id."""

    uri: str | None = None
    """MLflow tracking URI; null is SQLite beside the runs."""
    experiment: str | None = None
    enabled: bool = True


class GridConfig(Strict):
    """The axes of a sweep, all by dotted path into a point."""

    axes: dict[str, list[Any]] = Field(default_factory=dict)
    zip: list[dict[str, list[Any]]] = Field(default_factory=list)
    """Axes that move together; each entry is one such bundle."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: every listed path equals the value."""
    include: list[dict[str, Any]] = Field(default_factory=list)
    """Extra points, as overrides of `base`."""


class SweepConfig(Strict):
    """One experiment file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)
    description: str = ""
    stages: list[Literal["calibrate", "schedule", "train", "evaluate"]] = Field(
        default_factory=lambda: ["calibrate", "schedule", "train", "evaluate"], min_length=1
    )
    base: PointConfig = Field(default_factory=PointConfig)
    sweep: GridConfig = Field(default_factory=GridConfig)
    verdict: VerdictConfig = Field(default_factory=VerdictConfig)
    launch: LaunchConfig = Field(default_factory=LaunchConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
