"""Stages `train` and `evaluate`: a run that is cut anywhere ends in the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.histograms import read_histograms
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages import StageContext
from sparrow_lab.stages import train as train_stage
from sparrow_lab.tasks import make_task
from sparrow_lab.train.checkpoint import latest_checkpoint
from sparrow_lab.train.trainer import Trainer
from tests.stages import core
from tests.stages.core import ids_of, make_config, make_sweep, numbers_of, result_of, run, untimed

STEPS = 4

CONTRACT = {
    "reward/mean",
    "reward/right",
    "reward/wrong",
    "reward/unparsable",
    "reward/timeout",
    "reward/crash",
    "response/length_mean",
    "response/truncated",
    "policy/entropy",
    "policy/grad_norm",
    "policy/loss",
    "policy/kl_rollout",
    "importance/mean",
    "importance/max",
    "importance/clipped",
    "group/zero_variance",
    "acceptance/p01",
    "acceptance/p05",
    "acceptance/p10",
    "acceptance/p50",
    "acceptance/mean",
    "rollout/tokens_per_s",
    "rollout/kv_tokens_mean",
    "time/rollout_s",
    "time/train_s",
    "time/step_s",
    "detector/collapsed",
    "detector/length_drop",
    "detector/entropy_rise",
    "detector/nonfinite",
}


def scheduled(path: Path, **sections: Any) -> SweepFolder:
    """A sweep whose schedule stage is done."""
    sweep = make_sweep(path, make_config(**sections))
    run(sweep, "5c00")
    return sweep


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A sweep with nothing but its schedule, for copies."""
    return scheduled(tmp_path_factory.mktemp("sweep") / "base")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, base: SweepFolder) -> SweepFolder:
    """The run that nothing interrupted, and its evaluation."""
    sweep = copy_of(base, tmp_path_factory.mktemp("sweep") / "whole")
    run(sweep, "7a00", "e000")
    return sweep


def copy_of(sweep: SweepFolder, to: Path) -> SweepFolder:
    shutil.copytree(sweep.path, to)
    return SweepFolder(to)


@pytest.fixture
def sweep(tmp_path: Path, base: SweepFolder) -> SweepFolder:
    """A fresh copy of `base`."""
    return copy_of(base, tmp_path / "sweep")


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a train stage that is asked to stop, or dies, once in each of the first attempts."""

    def make(at: Sequence[int], error: type[BaseException] | None = None) -> str:
        def stage(ctx: StageContext) -> dict[str, Any]:
            tell = ctx.progress

            def progress(done: int, total: int, note: str = "") -> None:
                tell(done, total, note)
                if len(ctx.previous) < len(at) and done == at[len(ctx.previous)]:
                    if error is not None:
                        raise error("cut")
                    ctx.stop.set("SIGTERM")

            ctx.progress = progress  # type: ignore[method-assign]
            return train_stage.run(ctx)

        monkeypatch.setattr(core, "cut_train", stage, raising=False)
        return "tests.stages.core:cut_train"

    return make


def final_weights(point: PointFolder) -> dict[str, torch.Tensor]:
    return load_file(point.path / "final" / "model.safetensors")


def last_state(point: PointFolder) -> dict[str, Any]:
    """What the newest checkpoint of all attempts says beside its tensors."""
    path = latest_checkpoint([a.checkpoints for a in point.attempts()])
    assert path is not None
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    return state


def assert_same_run(sweep: SweepFolder, whole: SweepFolder) -> None:
    """Weights, events, histograms and the result's metrics agree to the bit."""
    point, other = sweep.point("7a00"), whole.point("7a00")
    a, b = final_weights(point), final_weights(other)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert numbers_of(point) == numbers_of(other)
    mine, its = read_histograms(point), read_histograms(other)
    assert [step for step, _ in mine] == [step for step, _ in its] == list(range(STEPS))
    for (_, x), (_, y) in zip(mine, its, strict=True):
        assert x.counts.tolist() == y.counts.tolist() and x.sums.tolist() == y.sums.tolist()
    # what detectors look back on comes through every cut
    assert last_state(point)["step"] == STEPS
    assert last_state(point)["history"] == last_state(other)["history"]
    assert [len(x) for x in last_state(point)["history"].values()] == [2, 2, STEPS, STEPS]
    metrics = [untimed(result_of(p)["metrics"]) for p in (point, other)]
    assert repr(sorted(metrics[0].items())) == repr(sorted(metrics[1].items()))


# ------------------------------------------------------------------ a whole run
def test_a_run_records_what_the_contract_names(whole: SweepFolder) -> None:
    point = whole.point("7a00")
    events = read_events(point)
    assert events.steps == list(range(STEPS + 1))
    for step, _, _, metrics in events.rows[:-1]:
        assert metrics.keys() >= CONTRACT, step
    assert events.series("evaluate/reward")[0] == [0, 2, 4]
    assert events.series("time/evaluate_s")[0] == [0, 2, 4]
    result = result_of(point)
    assert result["schedule_name"] == "budget=40"
    schedule = Schedule.load(whole.point("5c00").path / "schedule.json")
    assert result["schedule_digest"] == schedule.digest
    rewards = events.series("evaluate/reward")[1]
    assert result["metrics"]["evaluate/peak"] == max(rewards)
    assert result["metrics"]["evaluate/reward"] == rewards[-1]
    assert result["metrics"]["reward/mean"] == events.series("reward/mean")[1][-1]
    assert set(result["time"]) == {"rollout_s", "train_s", "evaluate_s"}
    assert all(seconds > 0 for seconds in result["time"].values())
    assert sum(result["time"].values()) <= result["seconds"]


def test_training_moves_the_weights(whole: SweepFolder) -> None:
    start, _ = load_model(ModelConfig(name="tiny-s"))
    end = final_weights(whole.point("7a00"))
    moved = [k for k, v in start.named_parameters() if not torch.equal(v, end[k])]
    assert len(moved) == len(end)
    norms = read_events(whole.point("7a00")).series("policy/grad_norm")[1]
    assert any(x > 0 for x in norms)


def test_the_final_folder_is_a_model(whole: SweepFolder) -> None:
    folder = whole.point("7a00").path / "final"
    model, tokenizer = load_model(ModelConfig(name=str(folder)))
    weights = final_weights(whole.point("7a00"))
    assert all(torch.equal(p, weights[k]) for k, p in model.named_parameters())
    assert tokenizer.eos_token == "<eos>"
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(".final")]


def test_acceptance_at_step_0_is_that_of_the_warm_start(whole: SweepFolder) -> None:
    """The first step's histogram equals a trainer's of its own: the policy before any update."""
    config = make_config()
    model, tokenizer = load_model(config.model)
    schedule = Schedule.load(whole.point("5c00").path / "schedule.json")
    trainer = Trainer(model, make_task(config.task, tokenizer), schedule, config)
    step, histogram = read_histograms(whole.point("7a00"))[0]
    assert step == 0
    assert histogram.counts.tolist() == trainer.step(0).histogram.counts.tolist()


def test_the_same_point_again_gives_the_same_bits(sweep: SweepFolder, whole: SweepFolder) -> None:
    run(sweep, "7a00")
    assert_same_run(sweep, whole)


def test_another_seed_is_another_run(tmp_path: Path, whole: SweepFolder) -> None:
    sweep = scheduled(tmp_path / "other", seed=4)
    run(sweep, "7a00")
    assert numbers_of(sweep.point("7a00")) != numbers_of(whole.point("7a00"))


def test_the_detector_watches_the_metric_that_the_verdict_names(sweep: SweepFolder) -> None:
    plan = sweep.read_plan()
    verdict = {"metric": "response/length_mean", "fall": 0.25, "floor": 1e9, "stay": 2}
    sweep.write_plan(replace(plan, verdict=verdict))
    run(sweep, "7a00")
    point = sweep.point("7a00")
    lengths = read_events(point).series("response/length_mean")[1]
    assert last_state(point)["history"]["verdict"] == lengths
    # below the floor from the third step on, when two values stay below after the first
    assert read_events(point).series("detector/collapsed")[1] == [0.0, 0.0, 1.0, 1.0, 1.0]


# ------------------------------------------------------------------ cut and resumed
@pytest.mark.parametrize("at", [[1], [2], [3], [4], [1, 3]], ids=str)
def test_a_run_that_is_asked_to_stop_goes_on_to_the_same_bits(
    sweep: SweepFolder, whole: SweepFolder, cut: Callable[..., str], at: list[int]
) -> None:
    stage = cut(at)
    for step in at:
        run(sweep, "7a00", train=stage)
        point = sweep.point("7a00")
        assert point.read_result() is None
        failure = point.attempts()[-1].read_failure()
        assert failure is not None and failure["kind"] == "interrupted"
        kept = sorted(p.name for p in point.attempts()[-1].checkpoints.iterdir())
        assert kept[-1] == f"step-{step}"
    run(sweep, "7a00", train=stage)
    assert_same_run(sweep, whole)
    attempts = [attempt for _, _, attempt, _ in read_events(sweep.point("7a00")).rows]
    assert attempts == sorted(attempts)
    assert attempts.count(1) == at[0]
    log = sweep.point("7a00").attempts()[-1].log_path.read_text()
    assert f"resumed at step {at[-1]}" in log


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_run_that_dies_goes_on_from_its_last_checkpoint_to_the_same_bits(
    sweep: SweepFolder, whole: SweepFolder, cut: Callable[..., str], at: int
) -> None:
    """Checkpoints lie at step 2 and 4; steps after the last one are run again."""
    stage = cut([at], MemoryError)
    with pytest.raises(MemoryError):
        run(sweep, "7a00", train=stage)
    run(sweep, "7a00", train=stage)
    assert_same_run(sweep, whole)
    attempts = [attempt for _, _, attempt, _ in read_events(sweep.point("7a00")).rows]
    assert attempts.count(1) == {1: 0, 3: 2, 4: 2}[at]


def test_a_torn_checkpoint_is_not_taken(
    sweep: SweepFolder, whole: SweepFolder, cut: Callable[..., str]
) -> None:
    stage = cut([3])
    run(sweep, "7a00", train=stage)
    folder = sweep.point("7a00").attempts()[0].checkpoints
    (folder / "step-3").rename(folder / ".step-3.part")
    run(sweep, "7a00", train=stage)
    assert "resumed at step 2" in sweep.point("7a00").attempts()[1].log_path.read_text()
    assert_same_run(sweep, whole)


def made_again(sweep: SweepFolder, point_id: str) -> None:
    """Let the files that lie there be what the point made."""
    point = sweep.point(point_id)
    result = json.loads((point.path / "result.json").read_text())
    (point.path / "result.json").unlink()
    point.write_result(result)


def test_another_schedule_at_resume_is_refused_naming_both(
    sweep: SweepFolder, cut: Callable[..., str]
) -> None:
    stage = cut([2])
    run(sweep, "7a00", train=stage)
    path = sweep.point("5c00").path / "schedule.json"
    old = Schedule.load(path)
    reserved = make_config().sparsity.reserved
    new = Schedule.fixed(64, 8, dense_layers=1, reserved=reserved)
    new.save(path)
    made_again(sweep, "5c00")
    with pytest.raises(UserError, match=f"schedule {old.digest}, the run has {new.digest}"):
        run(sweep, "7a00", train=stage)
    assert sweep.point("7a00").read_result() is None


def test_a_checkpoint_of_another_model_is_refused(
    sweep: SweepFolder, cut: Callable[..., str]
) -> None:
    stage = cut([2])
    run(sweep, "7a00", train=stage)
    point = sweep.point("7a00")
    data = json.loads((point.path / "point.json").read_text())
    data["config"]["model"]["name"] = "tiny-m"
    (point.path / "point.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"shape \(.*64.*\), the model has \(.*128"):
        run(sweep, "7a00", train=stage)


def test_a_schedule_for_other_pages_is_refused(sweep: SweepFolder) -> None:
    Schedule.fixed(64, 16, dense_layers=1).save(sweep.point("5c00").path / "schedule.json")
    made_again(sweep, "5c00")
    with pytest.raises(UserError, match="page size 16, but the run has page size 8"):
        run(sweep, "7a00")


def test_a_worker_that_lost_its_claim_writes_nothing_more(sweep: SweepFolder) -> None:
    point = sweep.point("7a00")

    def robbed(ctx: StageContext) -> dict[str, Any]:
        tell = ctx.progress

        def progress(done: int, total: int, note: str = "") -> None:
            tell(done, total, note)
            if done == 2 and not ctx.previous:
                point.new_attempt({"pid": 1})

        ctx.progress = progress  # type: ignore[method-assign]
        return train_stage.run(ctx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "robbed", robbed, raising=False)
        run(sweep, "7a00", train="tests.stages.core:robbed")
    assert point.read_result() is None
    assert not (point.path / "final").exists()
    first = point.attempts()[0]
    assert not [p for p in first.checkpoints.glob("step-*") if p.name > "step-2"]
    assert read_events(point).steps == [0, 1]


# ------------------------------------------------------------------ dense, and evaluation
def test_a_dense_run_needs_no_page_size_of_its_schedule(tmp_path: Path) -> None:
    sparsity = {"schedule": {"dense": True}}
    train = {"steps": 1, "evaluate_every": 1}
    sweep = scheduled(
        tmp_path / "dense", sparsity={**core.BASE["sparsity"], **sparsity}, train=train
    )
    run(sweep, "7a00", "e000")
    metrics = result_of(sweep.point("7a00"))["metrics"]
    assert metrics["acceptance/p01"] > 0.999
    evaluated = result_of(sweep.point("e000"))["metrics"]
    assert evaluated["evaluate/sparse_reward"] == evaluated["evaluate/reward"]


def test_every_evaluation_is_on_prompts_that_training_never_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training's prompts, those it watched, and those of the last word are three disjoint sets."""
    sweep = scheduled(tmp_path / "held", train={"steps": 2, "evaluate_every": 1})
    asked: dict[str, list[tuple[str, set[str], set[tuple[int, ...]]]]] = {}
    for name in ("train", "evaluate"):
        module: Any = __import__(f"sparrow_lab.stages.{name}", fromlist=["make_task"])

        def recorded(*args: Any, name: str = name) -> Any:
            task: Any = make_task(*args)
            whole_prompts = task.prompts

            def prompts(split: str, start: int, count: int, seed: int = 0) -> Any:
                found = whole_prompts(split, start, count, seed)
                texts = {p.tokens for p in found}
                asked.setdefault(name, []).append((split, ids_of(found), texts))
                return found

            task.prompts = prompts
            return task

        monkeypatch.setattr(module, "make_task", recorded)
    run(sweep, "7a00", "e000")
    trained = [a for a in asked["train"] if a[0] == "train"]
    watched = [a for a in asked["train"] if a[0] == "evaluate"]
    last = asked["evaluate"]
    assert len(trained) == 2 and len(watched) == 3 and len(last) == 2
    assert {a[0] for a in last} == {"evaluate"}
    for i in (1, 2):
        sets = [set().union(*(a[i] for a in group)) for group in (trained, watched, last)]
        assert [len(s) for s in sets] == [4, 6, 6]
        assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])


def test_the_evaluation_measures_dense_and_sparse(whole: SweepFolder) -> None:
    metrics = result_of(whole.point("e000"))["metrics"]
    for name in ("evaluate/reward", "evaluate/sparse_reward"):
        assert 0 <= metrics[name] <= 1
    assert metrics["evaluate/length_mean"] > 1 and metrics["evaluate/sparse_length_mean"] > 1
    assert 0 < metrics["acceptance/p01"] <= metrics["acceptance/p05"] <= metrics["acceptance/mean"]
    assert not [name for name in metrics if "/bin_" in name or name.startswith("time/")]
    config = make_config()
    model, tokenizer = load_model(ModelConfig(name=str(whole.point("7a00").path / "final")))
    trainer = Trainer(model, make_task(config.task, tokenizer), Schedule.dense(8), config)
    dense, _ = trainer.evaluate(6, start=6)
    assert metrics["evaluate/reward"] == dense["evaluate/reward"]
