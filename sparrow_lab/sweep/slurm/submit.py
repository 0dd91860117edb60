"""Handing what a sweep still needs to a cluster: intent first, then sbatch, then its answer.

Called under the sweep's lock, by the command line or by a controller. It can be killed at any
instant: what was meant is in the ledger before Slurm is asked, with a token that the job's
name carries, and an element runs a point only while the ledger's last word on it is its token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm import breaker
from sparrow_lab.sweep.slurm.arrange import arrange
from sparrow_lab.sweep.slurm.limits import read_limits
from sparrow_lab.sweep.slurm.reconcile import reconcile
from sparrow_lab.sweep.slurm.send import Sender, Submitted
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.slurm.todo import Todo, find_todo

Say = Callable[[str], None]


def submit(
    sweep: SweepFolder,
    site: SiteConfig,
    options: Options,
    say: Say,
    stages: Mapping[str, str] | None = None,
    check: Callable[[Todo], None] | None = None,
    forgive: bool = True,
    canary: bool = True,
) -> Submitted:
    """Submit every point of the plan that is neither done nor in somebody's hands.

    Args:
        sweep: the folder, its plan written; the caller holds its lock.
        site: the cluster.
        options: `only` limits the points, `retries` is what jobs may try again by themselves.
        say: where to tell what happens, a line at a time.
        stages: stage functions of the workers, for tests.
        forgive: a user's own command forgets what held a stage so far; a controller's does not.
        canary: the first point of a stage goes alone, before the rest.
        check: called with what is to be done before anything is written; raises to stop it.

    Raises:
        UserError: the queue cannot be read, or sbatch refused; it names what was submitted
            before. The rest stays planned.
    """
    sweep = SweepFolder(sweep.path.resolve())
    queue = read_queue()
    if queue.error:
        raise UserError(f"what runs cannot be told, so nothing was submitted: {queue.error}")
    reconcile(sweep, queue, say)
    todo = find_todo(sweep, options, queue, canary)
    if check is not None:
        check(todo)
    Ledger(sweep.ledger_path).append("opened", **options.to_json())
    for line in todo.lines():
        say(line)
    if not todo.elements:
        return Submitted()
    if forgive:
        breaker.forgive(sweep)
    limits = read_limits(site)
    parts = arrange(
        todo.elements,
        limits.array,
        site.throttle,
        todo.canaries,
        todo.live,
        todo.live_arrays,
        todo.first,
    )
    return Sender(sweep, site, options, limits, say, stages).send(parts)
