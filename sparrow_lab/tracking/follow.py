"""Import again and again until a sweep has ended; catch up after any absence of MLflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking.importer import Importer
from sparrow_lab.tracking.summary import SyncSummary

POLL_S = 5.0
SETTLE_S = 15.0
"""How long a sweep must have nothing left to run: a failed attempt may be tried again."""
GIVE_UP_S = 600.0
"""How long after the sweep's end a store that is down is tried again."""


def follow_sweep(
    sweep: SweepFolder,
    uri: str | None = None,
    poll_s: float = POLL_S,
    settle_s: float = SETTLE_S,
    give_up_s: float = GIVE_UP_S,
    busy: Callable[[], bool] | None = None,
    report: Callable[[SyncSummary], None] | None = None,
    stop: threading.Event | None = None,
) -> SyncSummary:
    """Import every `poll_s` seconds until the sweep has ended, and sum up.

    Args:
        busy: whether somebody will still start tasks (a launcher that lives); while it is
            true the sweep has not ended.
        report: called after each pass, with what that pass did.
        stop: when set, the task at hand is finished and the rest is left for a later import.

    A store that is down is tried again at each pass, after the sweep's end for `give_up_s`
    more. The summary's `warning` is the last pass's: None means that all is in MLflow.
    """
    stop = stop or threading.Event()
    importer = Importer(sweep, uri, stop)
    total = SyncSummary(sweep.name, importer.store.uri, importer.experiment)
    over_since: float | None = None
    while True:
        one = importer.run(wait_s=poll_s)
        total.add(one)
        if report is not None:
            report(one)
        over = one.ended and not (busy is not None and busy())
        now = time.monotonic()
        over_since = (now if over_since is None else over_since) if over else None
        if over_since is not None:
            enough = settle_s if one.warning is None else max(settle_s, give_up_s)
            if now - over_since >= enough:
                return total
        if stop.wait(poll_s):
            return total
