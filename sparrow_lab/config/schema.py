"""Every key of an experiment file, with its type, range, default and meaning.

Two kinds of field: those of `PointConfig` can change a result and enter the id of
a point; those of `SweepConfig` outside `base` (name, launch, tracking, report) say
how and where the work runs, and do not. The models are strict: an unknown key, a
string where a number belongs or a value out of range is an error, never a guess.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from sparrow_lab.config.methods import BracketConfig, Dimension, OptunaConfig, RandomConfig
from sparrow_lab.config.strict import Strict

SCHEMA_VERSION = 1
"""Part of every point id. Raise it only when the meaning of a field changes."""


class ModelConfig(Strict):
    """Which weights are trained, where and how precisely."""

    name: str = "tiny-s"
    """A built-in tiny model (tiny-s, tiny-m, tiny-l), a local folder, or a hub id."""
    warm_start: int = Field(0, ge=0)
    """Which of the shipped warm starts of a tiny model; ignored for other models."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of weights, rollout and updates; logits are always at least float32. float32 on
    a GPU too, unless stated: an update of 1e-6 is lost in a weight of bfloat16."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the stages load, roll out and train it. `cuda` is the first GPU that a worker is shown;
    which one that is, CUDA_VISIBLE_DEVICES or the scheduler says, and no result depends on it.
    A GPU's results differ from a CPU's in rounding, so it is part of the id."""
    fingerprint: str | None = None
    """Of a local folder's content; filled in when the sweep is planned."""


class TaskConfig(Strict):
    """Where prompts come from and how an answer is judged."""

    name: Literal["pointer_chase", "permutation_walk", "reasoning_gym", "jsonl"] = "pointer_chase"
    dataset: str | None = None
    """reasoning_gym: the dataset's name; jsonl: the file's path."""
    sha256: str | None = None
    """jsonl: of the file's content; filled in when the sweep is planned."""
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
    sha256: str | None = None
    """Of the file's content; filled in when the sweep is planned, so that a later edit shows."""


class Preset(Strict):
    """One of the paper's 20 tables, for example `qwen3-1.7b-0.86`."""

    preset: str = Field(min_length=1)


ScheduleSource = Dense | Tau | Budget | ScheduleFile | Preset

SCHEDULE_FORMS: dict[str, type[Strict]] = {
    "dense": Dense,
    "tau": Tau,
    "budget": Budget,
    "file": ScheduleFile,
    "preset": Preset,
}
"""The five ways to state a schedule; each is a mapping with this one key."""


def _schedule_form(value: Any) -> str | None:
    """Name the form of a schedule by its key, so that an error speaks of that form alone."""
    if isinstance(value, dict):
        forms = [key for key in value if key in SCHEDULE_FORMS]
        return f"<{forms[0]}>" if len(forms) == 1 else None
    return next((f"<{k}>" for k, form in SCHEDULE_FORMS.items() if type(value) is form), None)


def _short_schedule(value: Any) -> Any:
    return {"dense": True} if value == "dense" else value


def _tuple_from_yaml(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# The schedule as a field: the short form `dense`, and a union told apart by its key.
# The tags stand in angle brackets so that they never look like a key in a path.
ScheduleField = Annotated[
    Annotated[Dense, Tag("<dense>")]
    | Annotated[Tau, Tag("<tau>")]
    | Annotated[Budget, Tag("<budget>")]
    | Annotated[ScheduleFile, Tag("<file>")]
    | Annotated[Preset, Tag("<preset>")],
    Discriminator(_schedule_form),
    BeforeValidator(_short_schedule),
]
_Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[_Beta, _Beta], BeforeValidator(_tuple_from_yaml)]


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
    schedule: ScheduleField = Field(default_factory=Dense)
    """`dense`, {tau: 0.86}, {budget: 512}, {file: s.json} or {preset: qwen3-1.7b-0.86}."""


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
    budgets: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
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
    trajectories: list[Literal["own", "dense"]] = Field(default=["own", "dense"], min_length=1)
    """Measure on each budget's own rollouts, on common dense ones, or on both."""
    rule: Literal["estimate", "lower"] = "estimate"
    """A budget reaches tau when its p5, or the lower end of its interval, is at least tau."""
    estimator: Literal["exact", "top_k"] = "exact"
    top_k: int = Field(20, ge=1)


class TrainConfig(Strict):
    """GRPO on sparse rollouts (paper section 4)."""

    steps: int = Field(100, ge=1, le=10_000_000)
    prompts: int = Field(8, ge=1)
    """Prompts a step."""
    samples: int = Field(16, ge=2)
    """Samples a prompt: the group."""
    minibatches: int = Field(1, ge=1)
    epochs: int = Field(1, ge=1)
    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(0, ge=0)
    betas: Betas = (0.9, 0.999)
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


class VerdictConfig(Strict):
    """When a training run counts as collapsed; read by detectors and by the analysis."""

    metric: Literal["evaluate/reward", "reward/mean", "response/length_mean", "acceptance/p05"] = (
        "evaluate/reward"
    )
    """Of the training run, logged at its steps; the higher the better."""
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
    seed: int = Field(0, ge=0, lt=2**32)
    threads: int = Field(1, ge=1)
    """CPU threads of a worker; part of the id because sums depend on it."""


class LaunchConfig(Strict):
    """Where and how workers run; never part of an id."""

    parallel: int | None = Field(None, ge=1)
    """Workers at once; null fits the cores, and lets one worker at a time have a GPU."""
    timeout_min: int = Field(720, ge=1)
    retries: int = Field(1, ge=0)
    """New attempts after a crash, per stage of a point."""
    grace_s: int = Field(30, ge=1)
    canary: bool = True
    """On a cluster: the first point of a stage ends before the rest of the stage begins."""
    max_gpu_hours: float | None = Field(None, gt=0)
    """On a cluster: a sweep whose estimate, with what it has used, is above this is refused."""


class TrackingConfig(Strict):
    """Where MLflow's records go; never part of an id."""

    uri: str | None = None
    """MLflow tracking URI; null is SQLite beside the runs."""
    experiment: str | None = None
    enabled: bool = True


Method = Literal["grid", "random", "optuna", "bracket"]
ADAPTIVE: frozenset[Method] = frozenset({"optuna", "bracket"})
"""Methods that choose a point by the results of others, so that their plan grows as they run."""


class GridConfig(Strict):
    """Which points a sweep has; all fields by dotted path into a point."""

    method: Method = "grid"
    """grid: every combination of the axes. random, optuna: points drawn or proposed from `space`,
    each at every combination of the axes. bracket: narrows one field to where runs collapse,
    for every combination of the axes."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    zip: list[dict[str, list[Any]]] = Field(default_factory=list)
    """Axes that move together; each entry is one such bundle."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: every listed path equals the value."""
    include: list[dict[str, Any]] = Field(default_factory=list)
    """Extra points, as overrides of `base`."""
    space: dict[str, Dimension] = Field(default_factory=dict)
    """random, optuna: the range or the choices of each field that is drawn."""
    random: RandomConfig = Field(default_factory=RandomConfig)
    optuna: OptunaConfig = Field(default_factory=OptunaConfig)
    bracket: BracketConfig | None = None
    """bracket: must be given; it says which field, between which ends."""


class Source:
    """Where a config was written; two configs that differ only in it are equal."""

    def __init__(self, root: Any = None) -> None:
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source)

    __hash__ = None  # type: ignore[assignment]


Stage = Literal["calibrate", "schedule", "train", "evaluate"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class SweepConfig(Strict):
    """One experiment file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)
    description: str = ""
    stages: list[Stage] = Field(
        default=["calibrate", "schedule", "train", "evaluate"], min_length=1
    )
    base: PointConfig = Field(default_factory=PointConfig)
    sweep: GridConfig = Field(default_factory=GridConfig)
    verdict: VerdictConfig = Field(default_factory=VerdictConfig)
    launch: LaunchConfig = Field(default_factory=LaunchConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)

    _source: Source = PrivateAttr(default_factory=Source)
    """The nodes of the file (`sparrow_lab.config.nodes`), so that later errors name a line."""
