"""The worker: claims, results, failures, signals at every step, one run for identical runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.runs import histograms
from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.stages import StageContext, run_task
from sparrow_lab.stages.identical import effective_key, training_key
from tests.sweep import fakes

Stages = dict[str, str]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., SweepFolder]:
    def write(plan: Plan) -> SweepFolder:
        sweep = SweepFolder(tmp_path / plan.name)
        sweep.write_plan(plan)
        return sweep

    return write


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], Stages]:
    """Make a function the train stage, for workers of this process."""

    def use(function: Callable[..., Any]) -> Stages:
        monkeypatch.setattr(fakes, "given_by_test", function, raising=False)
        return {**fakes.STAGES, "train": "tests.sweep.fakes:given_by_test"}

    return use


def one_train(make: Callable[..., SweepFolder], **settings: Any) -> tuple[SweepFolder, PointFolder]:
    sweep = make(Plan("one", {}, (fakes.make_point("7a00", "train", **settings),)))
    return sweep, sweep.point("7a00")


def run(sweep: SweepFolder, *ids: str, stages: Stages | None = None) -> None:
    run_task(str(sweep.path), list(ids), stages or fakes.STAGES, "token")


def failure_of(point: PointFolder) -> dict[str, Any]:
    failure = point.attempts()[-1].read_failure()
    assert failure is not None
    return failure


def events_of(sweep: SweepFolder, point_id: str) -> list[str]:
    return [e["event"] for e in Ledger(sweep.ledger_path).read() if e.get("point") == point_id]


def test_a_job_of_two_points_leaves_two_results(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.9]))
    run(sweep, "c0000000", "5c000000", "7a000000", "e0000000")
    trained = sweep.point("7a000000")
    result = trained.read_result()
    assert result is not None
    assert result["metrics"]["value"] == fakes.expected(trained.read_point())
    assert (result["stage"], result["attempt"], result["alias_of"]) == ("train", 1, None)
    assert 0 <= result["seconds"] == result["finished"] - result["started"]
    attempt = trained.attempts()[0]
    assert not attempt.events_path.exists() and (attempt.path / "events.parquet").exists()
    assert read_events(trained).steps == [1, 2, 3, 4, 5]
    claim = attempt.read_claim()
    assert claim is not None and claim["pid"] == os.getpid() and claim["token"] == "token"
    evaluated = sweep.point("e0000000").read_result()
    assert evaluated is not None
    assert evaluated["metrics"]["evaluate/reward"] == 2 * result["metrics"]["value"]
    assert events_of(sweep, "7a000000") == ["started", "finished"]


def test_a_done_point_is_not_run_again(make: Callable[..., SweepFolder]) -> None:
    sweep, point = one_train(make)
    run(sweep, "7a00")
    run(sweep, "7a00")
    assert fakes.starts(point.path) == 1
    assert len(point.attempts()) == 1


def test_an_exception_is_recorded_and_fails_the_job(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.9], fail_at=3))
    run(sweep, "c0000000", "5c000000")
    with pytest.raises(ValueError, match="no luck"):
        run(sweep, "7a000000", "e0000000")
    point = sweep.point("7a000000")
    failure = failure_of(point)
    assert (failure["kind"], failure["type"]) == ("error", "ValueError")
    assert failure["message"] == "ValueError: no luck at step 3"
    assert "in train" in failure["traceback"]
    assert point.read_result() is None
    assert point.attempts()[0].log_path.read_text().rstrip().endswith("no luck at step 3")
    assert events_of(sweep, "7a000000") == ["started", "failed"]
    assert sweep.point("e0000000").attempts() == []


def test_a_users_mistake_has_no_traceback(make: Callable[..., SweepFolder]) -> None:
    sweep, point = one_train(make, mistake=True)
    with pytest.raises(Exception, match="page size 16 against 32"):
        run(sweep, "7a00")
    failure = failure_of(point)
    assert failure["type"] == "UserError" and failure["traceback"] == ""
    assert "Traceback" not in point.attempts()[0].log_path.read_text()


@pytest.mark.parametrize("given", [ValueError("swallowed"), None, 3])
def test_a_stage_that_returns_no_result_has_failed(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages], given: object
) -> None:
    sweep, point = one_train(make)
    with pytest.raises(TypeError, match="not a result"):
        run(sweep, "7a00", stages=stage(lambda ctx: given))
    assert point.read_result() is None
    assert failure_of(point)["kind"] == "error"
    if isinstance(given, ValueError):
        assert "swallowed" in failure_of(point)["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_signal_at_any_step_costs_nothing(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages], at: int, number: signal.Signals
) -> None:
    def signalled(ctx: StageContext) -> dict[str, Any]:
        whole = ctx.progress

        def progress(done: int, total: int, note: str = "") -> None:
            whole(done, total, note)
            if done == at and not ctx.previous:
                os.kill(os.getpid(), number)

        ctx.progress = progress  # type: ignore[method-assign]
        return fakes.train(ctx)

    sweep, point = one_train(make)
    handler = signal.getsignal(number)
    run(sweep, "7a00", stages=stage(signalled))
    assert signal.getsignal(number) is handler
    if at < 5:
        assert point.read_result() is None
        assert failure_of(point)["kind"] == "interrupted"
        assert failure_of(point)["message"] == number.name
        run(sweep, "7a00", stages=stage(signalled))
        rows = [(row[0], row[2]) for row in read_events(point).rows]
        assert rows == [(s, 1) for s in range(1, at + 1)] + [(s, 2) for s in range(at + 1, 6)]
    result = point.read_result()
    assert result is not None
    assert result["metrics"]["value"] == fakes.expected(point.read_point())


def test_a_signal_before_the_next_point_ends_the_job(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages]
) -> None:
    def last_moment(ctx: StageContext) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return fakes.train(ctx) if ctx.previous else {"metrics": {"value": 1.0}}

    sweep = make(fakes.make_plan(taus=[0.9]))
    run(sweep, "c0000000", "5c000000")
    run(sweep, "7a000000", "e0000000", stages=stage(last_moment))
    assert sweep.point("7a000000").read_result() is not None
    assert sweep.point("e0000000").attempts() == []


def test_a_worker_that_lost_its_claim_writes_no_result(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages]
) -> None:
    def robbed(ctx: StageContext) -> dict[str, Any]:
        ctx.folder.new_attempt({"pid": 1})
        return {"metrics": {"value": -1.0}}

    sweep, point = one_train(make)
    run(sweep, "7a00", stages=stage(robbed))
    assert point.read_result() is None
    assert [a.number for a in point.attempts()] == [1, 2]
    assert "later attempt" in (point.attempts()[0].read_failure() or {})["message"]


def test_a_claim_lost_at_the_last_moment_gives_no_result(
    make: Callable[..., SweepFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction imports a library and takes its time: the claim is looked at after it."""
    sweep, point = one_train(make)
    monkeypatch.setattr(histograms, "compact", lambda _: point.new_attempt({"pid": 1}))
    run(sweep, "7a00")
    assert point.read_result() is None


def test_a_point_that_another_worker_finished_meanwhile_is_left(
    make: Callable[..., SweepFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, point = one_train(make)
    real = PointFolder.new_attempt

    def late(folder: PointFolder, owner: dict[str, Any]) -> Any:
        folder.write_result({"attempt": 7, "metrics": {}})
        return real(folder, owner)

    monkeypatch.setattr(PointFolder, "new_attempt", late)
    run(sweep, "7a00")
    assert fakes.starts(point.path) == 0
    assert (point.read_result() or {})["attempt"] == 7
    assert failure_of(point)["kind"] == "interrupted"


def test_a_stage_sees_that_the_claim_is_lost(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages]
) -> None:
    seen: list[bool] = []

    def robbed(ctx: StageContext) -> dict[str, Any]:
        seen.append(ctx.should_stop())
        ctx.folder.new_attempt({"pid": 1})
        ctx._checked = 0.0
        seen.append(ctx.should_stop())
        ctx.check()
        return {}

    sweep, point = one_train(make)
    run(sweep, "7a00", stages=stage(robbed))
    assert seen == [False, True]
    assert point.read_result() is None


def test_a_point_without_what_it_needs_fails(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.9]))
    with pytest.raises(RuntimeError, match="needs the train of 7a000000"):
        run(sweep, "e0000000")
    assert "not done" in failure_of(sweep.point("e0000000"))["message"]


def test_a_point_whose_need_is_damaged_names_the_file(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.9]))
    train = sweep.read_plan().point("7a000000")
    run(sweep, *(p.id for p in sweep.read_plan().points if p.stage in ("calibrate", "schedule")))
    (sweep.point(train.needs["schedule"]).path / "schedule.json").write_text('{"schema"')
    with pytest.raises(UserError, match=r"schedule.json is damaged.*makes it again"):
        run(sweep, train.id)
    assert "Traceback" not in sweep.point(train.id).attempts()[-1].log_path.read_text()


@pytest.mark.parametrize("text", [None, "", "[]", '{"schema": 1'])
def test_a_made_file_that_no_hash_guards_is_named(
    make: Callable[..., SweepFolder], stage: Callable[..., Stages], text: str | None
) -> None:
    """Results of earlier versions have no hashes: the reader sees the damage, and says so."""

    def reads(ctx: StageContext) -> dict[str, Any]:
        path = ctx.made(ctx.folder, "curve.json")
        return {"metrics": {"read": len(path.read_text())}}

    sweep, point = one_train(make)
    if text is not None:
        (point.path / "curve.json").write_text(text)
    with pytest.raises(UserError, match=r"curve.json is (missing|damaged).*delete result.json"):
        run(sweep, "7a00", stages=stage(reads))
    (point.path / "curve.json").write_text("{}")
    run(sweep, "7a00", stages=stage(reads))
    assert (point.read_result() or {})["metrics"] == {"read": 2}


def test_a_cancelled_point_is_not_begun(make: Callable[..., SweepFolder]) -> None:
    sweep, point = one_train(make)
    Ledger(sweep.ledger_path).append("cancelled", point="7a00")
    run(sweep, "7a00")
    assert point.attempts() == []


def test_all_that_is_printed_goes_to_the_attempts_log(
    make: Callable[..., SweepFolder],
    stage: Callable[..., Stages],
    capfd: pytest.CaptureFixture[str],
) -> None:
    def loud(ctx: StageContext) -> dict[str, Any]:
        print("from print")
        print("from stderr", file=sys.stderr)
        os.write(1, b"from a library\n")
        os.system("echo from a child")
        return {"metrics": {}}

    sweep, point = one_train(make)
    run(sweep, "7a00", stages=stage(loud))
    print("after")
    text = point.attempts()[0].log_path.read_text()
    for word in ("from print", "from stderr", "from a library", "from a child"):
        assert word in text
    said = capfd.readouterr()
    assert "from" not in said.out + said.err
    assert "after" in said.out


def test_progress_is_written_for_the_live_table(make: Callable[..., SweepFolder]) -> None:
    sweep, point = one_train(make, steps=3)
    run(sweep, "7a00")
    progress = point.attempts()[0].read_progress()
    assert progress is not None and (progress["done"], progress["total"]) == (3, 3)


# ------------------------------------------------------------------- identical runs


def test_two_taus_with_one_schedule_are_one_run(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.8, 0.9], digest="d1"))
    run(sweep, "c0000000", "5c000000", "5c000001")
    run(sweep, "7a000000", "e0000000")
    run(sweep, "7a001000", "e0001000")
    first, second = sweep.point("7a000000"), sweep.point("7a001000")
    result = second.read_result()
    assert result is not None
    assert result["alias_of"] == "7a000000"
    assert result["metrics"] == (first.read_result() or {})["metrics"]
    assert fakes.starts(second.path) == 0
    evaluated = sweep.point("e0001000").read_result()
    assert evaluated is not None and evaluated["alias_of"] == "e0000000"
    assert fakes.starts(sweep.point("e0001000").path) == 0


def test_an_identical_run_waits_for_its_owner(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.8, 0.9], digest="d1"))
    run(sweep, "c0000000", "5c000000", "5c000001")
    plan = sweep.read_plan()
    key = effective_key(sweep, plan.point("7a000000"))
    assert key is not None and key == effective_key(sweep, plan.point("7a001000"))
    sweep.claim_effective(key, "7a000000")
    run(sweep, "7a001000")
    assert failure_of(sweep.point("7a001000"))["kind"] == "interrupted"
    run(sweep, "7a000000")
    run(sweep, "7a001000")
    assert (sweep.point("7a001000").read_result() or {})["alias_of"] == "7a000000"


def test_other_seeds_and_other_schedules_are_other_runs(make: Callable[..., SweepFolder]) -> None:
    same = make(fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1], digest="d1", name="same"))
    other = make(fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1], name="other"))
    for sweep, runs in ((same, 2), (other, 4)):
        assert effective_key(sweep, sweep.read_plan().point("7a000000")) is None
        run(sweep, "c0000000", "5c000000", "5c000001")
        points = [p for p in sweep.read_plan().points if p.stage == "train"]
        keys = {effective_key(sweep, p) for p in points}
        assert None not in keys and len(keys) == runs


def test_a_later_field_at_its_default_leaves_a_run_the_same_run() -> None:
    """A plan of an older version does not have it: its runs are still those of a newer one."""
    config = fakes.make_point("7a00", "train").config
    older = {**config, "model": {k: v for k, v in config["model"].items() if k != "device"}}
    on_gpu = {**config, "model": {**config["model"], "device": "cuda"}}
    assert older != config and training_key(older, "d") == training_key(config, "d")
    assert training_key(on_gpu, "d") != training_key(config, "d")


def test_a_schedule_without_a_digest_shares_nothing(make: Callable[..., SweepFolder]) -> None:
    sweep = make(fakes.make_plan(taus=[0.9]))
    run(sweep, "c0000000", "5c000000")
    made = sweep.point("5c000000")
    (made.path / "schedule.json").write_text(json.dumps({"schema": 1}))
    made.write_result({"attempt": 1})
    assert effective_key(sweep, sweep.read_plan().point("7a000000")) is None
    run(sweep, "7a000000")
    assert (sweep.point("7a000000").read_result() or {})["alias_of"] is None
