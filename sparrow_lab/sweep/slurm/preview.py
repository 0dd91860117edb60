"""What a submission would ask of a cluster: arrays by stage, and GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrow_lab.config.site import SiteConfig, derived_cpus
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.estimate import Estimator
from sparrow_lab.sweep.slurm.arrange import Part, arrange
from sparrow_lab.sweep.slurm.budget import Hours, gpu_hours, spelled
from sparrow_lab.sweep.slurm.limits import Limits, read_limits
from sparrow_lab.sweep.slurm.todo import Todo, as_elements, need_canary
from sparrow_lab.sweep.states import ON_CLUSTER, PointState

MOST_SIZES = 8


def preview(
    site: SiteConfig,
    plan: Plan,
    states: Mapping[str, PointState],
    points: Sequence[str],
    canary: bool = True,
) -> tuple[list[str], Hours]:
    """Lines for people, and the hours of the whole sweep.

    Args:
        states: of every point of the plan.
        points: ids of those that the run is limited to.
    """
    chosen = set(points)
    left = [
        p
        for p in plan.points
        if p.id in chosen and states[p.id].state not in ("done", "cancelled", *ON_CLUSTER)
    ]
    todo = Todo(dict(states), as_elements(left))
    limits = read_limits(site)
    canaries = need_canary(todo) if canary else set()
    parts = arrange(todo.elements, limits.array, site.throttle, canaries, {})
    seconds = Estimator().seconds
    hours = gpu_hours((s for i, s in states.items() if i in chosen or s.result), site, seconds)
    threads = max((int(p.config.get("threads", 1)) for p in left), default=1)
    by_stage = {part.stage: [p for p in parts if p.stage == part.stage] for part in parts}
    lines = [_site_line(site, threads)]
    lines += [f"  {stage}: {_sizes(those)}" for stage, those in by_stage.items()]
    lines.append(f"  {_cap_line(limits)}{_throttle_line(site)}")
    unknown = f", {hours.unknown} of its points at their whole time" if hours.unknown else ""
    lines.append(
        f"  about {spelled(hours.to_come)} GPU-hours to come{unknown}, "
        f"{spelled(hours.used)} used, by the estimate above"
    )
    return lines, hours


def _site_line(site: SiteConfig, threads: int) -> str:
    parts = [
        f"partition {site.partition}" if site.partition else "",
        f"{site.gpus} GPU" + ("" if site.gpus == 1 else "s"),
        f"{derived_cpus(site, threads)} CPUs",
        site.mem or "",
        f"{site.time} min",
    ]
    return f"on the cluster, a job: {', '.join(p for p in parts if p)}"


def _sizes(parts: Sequence[Part]) -> str:
    """`1 first, then 2 arrays of 1001 and 498`."""
    first = [p for p in parts if p.is_canary]
    rest = [str(len(p.elements)) for p in parts if not p.is_canary]
    words = ["1 job first"] if first else []
    if len(rest) > MOST_SIZES:
        jobs = sum(len(p.elements) for p in parts if not p.is_canary)
        words.append(f"{len(rest)} arrays with {jobs} jobs")
    elif rest:
        noun = "array" if len(rest) == 1 else "arrays"
        words.append(f"{len(rest)} {noun} of {' and '.join(rest)}")
    return ", then ".join(words)


def _cap_line(limits: Limits) -> str:
    whose = "" if limits.told else ", Slurm's usual one: the cluster was not asked"
    return f"at most {limits.array} jobs an array{whose}"


def _throttle_line(site: SiteConfig) -> str:
    return f"; at most {site.throttle} run at once" if site.throttle else ""
