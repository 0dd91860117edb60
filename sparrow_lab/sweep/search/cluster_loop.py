"""The controller of an adaptive sweep as a job: rounds under a lease until the search has ended."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.stages.signals import StopFlag
from sparrow_lab.sweep.lock import Held, sweep_lock
from sparrow_lab.sweep.search.at_work import BEGINS, has_left_the_queue, lease_of
from sparrow_lab.sweep.search.cluster_round import Passing, Rounds
from sparrow_lab.sweep.search.controller import Controller
from sparrow_lab.sweep.search.lease import Lease
from sparrow_lab.sweep.search.orders import POLL_S, Orders, orders_path
from sparrow_lab.sweep.slurm.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

RENEW_S = 20.0
LOCK_S = 30.0
"""So long a round waits for a command that holds the sweep."""
TICK_S = 0.2


def control(sweep: SweepFolder, stop: StopFlag, console: Console, job: str | None = None) -> int:
    """Run the search of a folder to its end, if no other controller does.

    Args:
        sweep: the folder, with orders.
        stop: set to make it leave; all it knows is in the folder.
        console: its log.
        job: the cluster's name of the job that this runs in.

    Returns:
        0 at the end of the search, when asked to stop, and when another controller holds the
        lease; 2 when the cluster refuses what is submitted.
    """
    lease = lease_of(sweep)
    if not lease.acquire(has_left_the_queue, job=job):
        holder = lease.holder() or {}
        where = f"job {holder.get('job')}" if holder.get("job") else f"pid {holder.get('pid')}"
        other = f"another controller is at work ({where} on {holder.get('host')})"
        _say(console, f"{BEGINS}{sweep.name}: {other}; leaving")
        return 0
    _say(console, f"{BEGINS}{sweep.name} begins: lease {lease.number}, job {job}")
    try:
        with _renewed(lease):
            return _rounds(sweep, lease, stop, console)
    finally:
        lease.release()


def _rounds(sweep: SweepFolder, lease: Lease, stop: StopFlag, console: Console) -> int:
    rounds: Rounds | None = None
    written = 0.0
    pause = POLL_S
    while not stop:
        try:
            with sweep_lock(sweep, LOCK_S):
                if not lease.held():
                    _say(console, "another controller has taken over; leaving")
                    return 0
                changed = orders_path(sweep).stat().st_mtime
                if rounds is None or changed != written:
                    orders = Orders.read(sweep)
                    rounds, written, pause = _open(sweep, orders, console), changed, orders.poll_s
                if not rounds.play():
                    for line in rounds.search.lines():
                        _say(console, line)
                    return 0
        except (Passing, Held) as error:
            _say(console, f"warning: {error}")
        except UserError as error:
            _say(console, f"error: {error}")
            return 2
        until = time.monotonic() + pause
        while time.monotonic() < until and not stop:
            time.sleep(TICK_S)
    _say(console, f"asked to stop ({stop.reason})")
    return 0


def _open(sweep: SweepFolder, orders: Orders, console: Console) -> Rounds:
    search = Controller(sweep, orders.config, orders.source_dir)
    cluster = Cluster.from_json(orders.cluster)
    return Rounds(sweep, search, cluster, orders.options, console, orders.stages)


@contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """Renew the lease in the background: a round may take long while Slurm does not answer."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_S):
            with suppress(OSError):  # a full or absent disk: the next time, or it runs out
                if not lease.renew():
                    return

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say(console: Console, line: str) -> None:
    clock = time.strftime("%Y-%m-%d %H:%M:%S")
    console.print(f"{clock} {line}", markup=False, highlight=False, soft_wrap=True)
