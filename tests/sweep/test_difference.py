"""A changed experiment file under an old name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.difference import against_folder, compare, stage_counts
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import dry_run, run_sweep
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes

MakeSweep = Callable[[Plan], SweepFolder]


def run(sweep: SweepFolder, plan: Plan) -> tuple[int, str]:
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    options = Options(parallel=2)
    code = run_sweep(sweep, plan, b"name: fake\n", options, console, stages=fakes.STAGES)
    return code, console.export_text()


def test_what_is_kept_new_and_dropped() -> None:
    old, new = fakes.make_plan(taus=[0.8, 0.9]), fakes.make_plan(taus=[0.8], seeds=[0, 1])
    first = compare(None, new)
    assert first.first and first.new == new.points
    difference = compare(old, new)
    assert str(difference) == "4 kept, 2 new, 3 dropped"
    assert stage_counts(difference.dropped) == "1 schedule, 1 train, 1 evaluate"


def test_another_sweep_under_the_same_name_is_refused(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8]))
    other = Plan("fake", {}, (fakes.make_point("ffff0000", "calibrate"),))
    with pytest.raises(UserError, match="shares no point"):
        against_folder(sweep, other)
    with pytest.raises(UserError, match="shares no point"):
        run(sweep, other)
    assert sweep.read_plan().points[0].id == "c0000000"


def test_a_grown_sweep_runs_only_what_is_new(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path / "fake")
    code, said = run(sweep, fakes.make_plan(taus=[0.8]))
    assert code == 0 and "4 points: 1 calibrate, 1 schedule, 1 train, 1 evaluate" in said
    assert sweep.source_path.read_bytes() == b"name: fake\n"
    grown = fakes.make_plan(taus=[0.8, 0.9])
    code, said = run(sweep, grown)
    assert code == 0 and "4 kept, 3 new" in said
    for point in grown.points:
        assert fakes.starts(sweep.point(point.id).path) == 1
    # and again: nothing left, nothing written
    before = sweep.ledger_path.read_bytes()
    code, said = run(sweep, grown)
    assert code == 0 and "all 7 points are done" in said
    assert sweep.ledger_path.read_bytes() == before
    # smaller again: what was dropped is left alone
    code, said = run(sweep, fakes.make_plan(taus=[0.8]))
    assert code == 0 and "no longer in the file, left alone" in said
    dropped = [e["point"] for e in Ledger(sweep.ledger_path).read() if e["event"] == "dropped"]
    assert dropped == ["5c000001", "7a001000", "e0001000"]
    assert all(sweep.point(i).read_result() is not None for i in dropped)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path / "runs" / "fake")
    plan = fakes.make_plan(taus=[0.8])
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    dry_run(console, sweep, plan, [p.id for p in plan.points])
    said = console.export_text()
    (row,) = [line.split() for line in said.splitlines() if "7a000000" in line]
    assert row[1:] == ["tiny-s", "0.8", "0", "new"] and "4 points would run" in said
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    sweep = SweepFolder(tmp_path / "runs" / "fake")
    with pytest.raises(UserError, match="cannot write into the output folder"):
        run(sweep, fakes.make_plan(taus=[0.8]))


def test_a_disk_that_fills_up_ends_the_run_cleanly(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8], pause=30))
    real, calls = Ledger.append_all, [0]

    def full(ledger: Ledger, events: list[dict[str, object]]) -> None:
        calls[0] += 1
        if any(e["event"] == "submitted" for e in events):
            raise OSError(28, "No space left on device", str(ledger.path))
        real(ledger, events)

    monkeypatch.setattr(Ledger, "append_all", full)
    with pytest.raises(UserError, match="No space left on device; the same command goes on"):
        run(sweep, sweep.read_plan())
    monkeypatch.setattr(Ledger, "append_all", real)
    assert calls[0] > 1
    assert {s.state for s in read_states(sweep).values()} == {"planned"} or {
        s.state for s in read_states(sweep).values()
    } == {"planned", "held"}
