"""GPU-hours of a sweep on a cluster: what it has used, what is to come, and the cap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.states import PointState


@dataclass(frozen=True)
class Hours:
    """GPU-hours. `unknown` points are counted with the site's whole time limit."""

    used: float
    to_come: float
    unknown: int = 0

    @property
    def total(self) -> float:
        return self.used + self.to_come


def gpu_hours(
    states: Iterable[PointState],
    site: SiteConfig,
    seconds: Callable[[PlannedPoint], float | None],
) -> Hours:
    """The hours of a whole sweep on `site`: results count as measured, the rest as estimated.

    Attempts that came to nothing are not counted, and points cancelled by hand cost nothing.
    """
    used = to_come = 0.0
    unknown = 0
    for state in states:
        if state.result is not None:
            used += float(state.result.get("seconds") or 0.0)
        elif state.state != "cancelled":
            guess = seconds(state.point)
            unknown += guess is None
            to_come += 60.0 * site.time if guess is None else guess
    return Hours(site.gpus * used / 3600, site.gpus * to_come / 3600, unknown)


def check_cap(hours: Hours, site: SiteConfig, cap: float | None, where: str | None) -> None:
    """Refuse a sweep above the smaller of the file's cap and the site's.

    Args:
        cap: `launch.max_gpu_hours` of the sweep file.
        where: its place.

    Raises:
        UserError: at the place of the cap that is broken.
    """
    caps = [(cap, where), (site.max_gpu_hours, site.where("max_gpu_hours"))]
    limits = [(value, place) for value, place in caps if value is not None]
    if not limits:
        return
    limit, place = min(limits, key=lambda item: item[0])
    if hours.total > limit:
        raise UserError(
            f"the sweep would take about {spelled(hours.total)} GPU-hours "
            f"({spelled(hours.used)} used, {spelled(hours.to_come)} to come), above "
            f"max_gpu_hours = {limit:g}; nothing was submitted",
            place,
        )


def spelled(hours: float) -> str:
    """Hours to two figures or so."""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
