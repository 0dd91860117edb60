"""A search driven inside one process: ready points are run at once, crashes come on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.config.load import load_sweep
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.stages.signals import StopFlag
from sparrow_lab.stages.worker import run_point
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.search.controller import Controller
from sparrow_lab.sweep.states import read_states
from tests.sweep.search.stages import STAGES

BRACKET = """
name: b
base:
  sparsity: {page_size: 8, dense_layers: 1, reserved: {first_tokens: 8, last_tokens: 8}}
  train: {steps: 4}
sweep:
  method: bracket
  bracket: {field: sparsity.schedule.tau, low: 0.25, high: 0.95, width: 0.02}
"""
OPTUNA = """
name: o
base: {train: {steps: 4}}
sweep:
  method: optuna
  axes: {seed: [0, 1]}
  space:
    train.lr: {low: 1e-6, high: 1e-1, log: true}
  optuna: {trials: 7, startup: 3, concurrent: 2}
"""


class Crash(BaseException):
    """The controller dies here."""


class Writes:
    """Counts the controller's writes; the one of number `last` is its end.

    `torn`: that write, if it is one of the ledger, loses its last bytes.
    """

    def __init__(self, last: int | None = None, torn: bool = False) -> None:
        self.count, self.last, self.torn = 0, last, torn

    def wrap(self, function: Callable[..., Any], path: Path) -> Callable[..., Any]:
        def write(*arguments: Any) -> None:
            empty = isinstance(arguments[0], Sequence) and not arguments[0]
            function(*arguments)
            if empty:
                return
            self.count += 1
            if self.count == self.last:
                if self.torn and path.suffix == ".jsonl":
                    path.write_bytes(path.read_bytes()[:-9])
                raise Crash

        return write


def open_controller(file: Path, runs: Path, writes: Writes, *overrides: str) -> Controller:
    """A controller whose writes are counted."""
    config = load_sweep(file, overrides)
    sweep = SweepFolder(runs / config.name)
    search = Controller(sweep, config, file.parent)
    ledger, folder = search._ledger, search.sweep
    ledger.append_all = writes.wrap(ledger.append_all, sweep.ledger_path)  # type: ignore[method-assign]
    folder.write_plan = writes.wrap(folder.write_plan, sweep.plan_path)  # type: ignore[method-assign]
    return search


def drive(
    file: Path, runs: Path, writes: Writes | None = None, *overrides: str, turns: int = 100
) -> Controller:
    """Run a search to its end, or to its crash, as a launcher would."""
    search = open_controller(file, runs, writes or Writes(), *overrides)
    sweep = search.sweep
    sweep.write_plan(search.begin())
    for _ in range(turns):
        states = read_states(sweep)
        search.grow(states)
        plan = sweep.read_plan()
        if not run_ready(sweep, plan):
            break
    return search


def run_ready(sweep: SweepFolder, plan: Plan) -> int:
    """Run what can run, here and now; how many points that were."""
    states = {i: s.state for i, s in read_states(sweep, plan).items()}
    ready = queue.ready(plan.points, states)
    for point in ready:
        try:
            run_point(sweep, point, StopFlag(), STAGES)
        except (ValueError, RuntimeError):
            continue  # its failure is on record
    return len(ready)


def told(sweep: SweepFolder) -> list[dict[str, Any]]:
    """The events of a search in the ledger."""
    events = Ledger(sweep.ledger_path).read()
    return [e for e in events if e["event"] in ("proposed", "told")]
