"""Stage `schedule`: every source of a schedule, re-measured on prompts of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparrow_lab.acceptance.histogram import percentile_of_counts
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sparsity.make import make_schedule
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages.calibrate import SEED, measure_curve
from sparrow_lab.stages.schedule import remeasure
from sparrow_lab.tasks import make_task
from sparrow_lab.tasks.base import Split
from sparrow_lab.train.measure import histogram_of, recompute
from tests.stages.core import ids_of, make_config, make_sweep, result_of, run


def made(path: Path, **sections: Any) -> tuple[SweepFolder, Schedule]:
    """Run the schedule stage (and the calibration of a tau) in a fresh sweep."""
    config = make_config(**sections)
    sweep = make_sweep(path / "s", config)
    run(sweep, "ca00", "5c00") if "tau" in str(config.sparsity.schedule) else run(sweep, "5c00")
    return sweep, Schedule.load(sweep.point("5c00").path / "schedule.json")


def source(**form: Any) -> dict[str, Any]:
    return {"sparsity": {**make_config().sparsity.model_dump(), "schedule": form}}


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepFolder, Schedule]:
    return made(tmp_path_factory.mktemp("budget"), **source(budget=37))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepFolder, Schedule]:
    return made(tmp_path_factory.mktemp("dense"), **source(dense=True))


# ------------------------------------------------------------------ sources
def test_a_budget_is_rounded_up_to_pages_and_named_as_asked(
    budget: tuple[SweepFolder, Schedule],
) -> None:
    schedule = budget[1]
    assert (schedule.edges, schedule.budgets, schedule.name) == ((0,), (40,), "budget=37")
    assert (schedule.page_size, schedule.dense_layers, schedule.model) == (8, 1, "tiny-s")
    assert schedule.reserved_pages() == (1, 3)


def test_dense_is_measured_against_itself(dense: tuple[SweepFolder, Schedule]) -> None:
    schedule = dense[1]
    assert schedule.is_dense and schedule.name == "dense"
    measured = schedule.measured
    assert measured is not None
    assert measured["p05"] == measured["ceiling_p05"] > 0.999
    assert measured["reward"] == measured["dense_reward"]


def test_a_tau_takes_its_budgets_from_the_curve(tmp_path: Path) -> None:
    sweep, schedule = made(tmp_path, **source(tau=0.5))
    curve = json.loads((sweep.point("ca00").path / "curve.json").read_text())
    ladder = {r["budget"] for r in curve["pooled"]}
    assert set(schedule.budgets) <= ladder | {2**31 - 1}
    assert (schedule.tau, schedule.name) == (0.5, "tau=0.5")
    extras = result_of(sweep.point("5c00"))
    assert extras["measured_to"] % 8 == 0
    assert set(extras["unreached_bins"]) | set(extras["undecided_bins"]) <= {
        r["bin_start"] for r in curve["rows"]
    }


def test_a_file_is_taken_as_it_is(tmp_path: Path, budget: tuple[SweepFolder, Schedule]) -> None:
    reserved = make_config().sparsity.reserved
    own = Schedule(8, (0, 80), (40, 56), dense_layers=1, reserved=reserved, name="mine")
    own.save(tmp_path / "mine.json")
    _, schedule = made(tmp_path, **source(file=str(tmp_path / "mine.json")))
    assert schedule.digest == own.digest != budget[1].digest
    assert schedule.name == "mine" and schedule.measured is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 16}, "page size 16, but the run has page size 8"),
        ({"dense_layers": 0}, "dense layers 0, but the run has dense layers 1"),
        ({"landmark": "minmax"}, "landmark minmax, but the run has landmark mean"),
        ({"score": "softmax_max"}, "score softmax_max, but the run has score group_mean"),
        ({"model": "tiny-m"}, "model tiny-m, but the run has model tiny-s"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_naming_both_sides(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    settings = {"page_size": 8, "dense_layers": 1, "reserved": make_config().sparsity.reserved}
    Schedule.fixed(64, **{**settings, **changes}).save(tmp_path / "other.json")
    config = make_config(**source(file=str(tmp_path / "other.json")))
    with pytest.raises(UserError, match=message):
        make_schedule(config, None)


def test_a_preset_of_another_model_is_refused() -> None:
    sparsity = {"page_size": 16, "dense_layers": 2, "reserved": {}}
    config = make_config(sparsity={**sparsity, "schedule": {"preset": "qwen3-1.7b-0.86"}})
    with pytest.raises(UserError, match=r"made for model .*1\.7b.*run has model tiny-s"):
        make_schedule(config, None)


# ------------------------------------------------------------------ the measurement
def test_the_file_is_complete(budget: tuple[SweepFolder, Schedule]) -> None:
    sweep, schedule = budget
    data = json.loads((sweep.point("5c00").path / "schedule.json").read_text())
    assert data["digest"] == schedule.digest
    measured = data["measured"]
    assert {"prompts", "tokens", "p01", "p05", "p10", "p50", "mean"} <= measured.keys()
    assert {"p05_low", "p05_high", "ceiling_p05", "by_bin", "kv_tokens_mean"} <= measured.keys()
    assert measured["prompts"] == 8
    assert measured["p01"] <= measured["p05"] <= measured["p10"] <= measured["p50"]
    assert measured["p05_low"] <= measured["p05"] <= measured["p05_high"] or math.isclose(
        measured["p05_low"], measured["p05_high"]
    )
    assert measured["p05"] < measured["ceiling_p05"]
    assert measured["kv_tokens_mean"] <= 40
    assert sum(row["tokens"] for row in measured["by_bin"]) <= measured["tokens"]
    result = result_of(sweep.point("5c00"))
    assert result["schedule_digest"] == schedule.digest
    assert result["schedule_name"] == "budget=37"
    assert result["metrics"]["acceptance/p05"] == measured["p05"]
    assert result["metrics"]["rollout/kv_tokens_mean"] == measured["kv_tokens_mean"]


def test_the_measurement_is_what_an_own_rollout_says(
    budget: tuple[SweepFolder, Schedule],
) -> None:
    """Rolled out, recomputed and counted here, on the first prompts of `verify`."""
    config = make_config()
    model, tokenizer = load_model(config.model)
    task = make_task(config.task, tokenizer)
    prompts = task.prompts("verify", 0, 8)
    batch = RolloutEngine(model, budget[1]).generate(
        [p.tokens for p in prompts],
        1,
        config.rollout,
        max_new_tokens=task.max_new_tokens,
        stop_tokens=task.stop_tokens,
        seed=SEED,
    )
    histogram = histogram_of(batch, recompute(model, batch, 1.0), 8, 1.0)
    measured = budget[1].measured
    assert measured is not None
    assert measured["tokens"] == histogram.tokens() == int(batch.counted_NT.sum())
    assert measured["mean"] == pytest.approx(histogram.mean(), abs=1e-6)
    pooled = histogram.counts.sum(axis=0)
    assert measured["p05"] == pytest.approx(percentile_of_counts(pooled, 0.05), abs=1e-3)
    assert measured["length_mean"] == np.mean([len(a) for a in batch.answers()])


def test_calibrating_and_verifying_prompts_share_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    model, tokenizer = load_model(config.model)
    task: Any = make_task(config.task, tokenizer)
    asked: list[tuple[Split, set[str], set[tuple[int, ...]]]] = []
    whole = task.prompts

    def recorded(split: Split, start: int, count: int, seed: int = 0) -> Any:
        found = whole(split, start, count, seed)
        asked.append((split, ids_of(found), {p.tokens for p in found}))
        return found

    monkeypatch.setattr(task, "prompts", recorded)
    measure_curve(model, task, config, lambda *_: None)
    remeasure(model, task, config, Schedule.dense(8))
    assert [split for split, _, _ in asked] == ["calibrate", "verify"]
    (_, ids, texts), (_, other_ids, other_texts) = asked
    assert len(ids) == len(other_ids) == len(texts) == len(other_texts) == 8
    assert not ids & other_ids and not texts & other_texts


def test_a_points_seed_does_not_move_the_measurement(
    tmp_path: Path, budget: tuple[SweepFolder, Schedule]
) -> None:
    _, other = made(tmp_path, seed=99, **source(budget=37))
    assert other.measured == budget[1].measured


def test_without_bootstrap_there_is_no_interval(tmp_path: Path) -> None:
    _, schedule = made(tmp_path, calibrate={"bootstrap": 0}, **source(budget=40))
    assert schedule.measured is not None
    assert schedule.measured["p05_low"] is None and schedule.measured["p05_high"] is None


@pytest.mark.parametrize("form", [{"dense": True}, {"budget": 40}], ids=str)
def test_greedy_decoding_cannot_be_measured(tmp_path: Path, form: dict[str, Any]) -> None:
    sweep = make_sweep(tmp_path / "s", make_config(rollout={"temperature": 0.0}, **source(**form)))
    with pytest.raises(UserError, match="temperature above 0"):
        run(sweep, "5c00")
    assert sweep.point("5c00").read_result() is None
