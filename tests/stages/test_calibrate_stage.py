"""Stage `calibrate` on a shipped tiny model: the curve is whole, repeatable and ends at 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparrow_lab.acceptance.histogram import ACCEPTANCE_BINS, percentile_of_counts
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sparsity.calibration import cheapest_schedule
from sparrow_lab.sparsity.curve import Curve
from sparrow_lab.stages import Interrupted
from sparrow_lab.stages.calibrate import budget_ladder, measure_curve
from sparrow_lab.tasks import make_task
from tests.stages.core import context_of, make_config, make_sweep, result_of, run, table_rows

PERCENTILES = ("p01", "p05", "p10", "p50")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    made = make_sweep(tmp_path_factory.mktemp("sweep") / "calibrated", make_config())
    run(made, "ca00")
    return made


@pytest.fixture(scope="module")
def curve(sweep: SweepFolder) -> dict[str, Any]:
    text = (sweep.point("ca00").path / "curve.json").read_text()
    assert "NaN" not in text
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def measured(**sections: Any) -> dict[str, Any]:
    """A curve without a run folder."""
    config = make_config(**sections)
    model, tokenizer = load_model(config.model)
    return measure_curve(model, make_task(config.task, tokenizer), config, lambda *_: None)[0]


# ------------------------------------------------------------------ the file
def test_the_curve_is_complete(curve: dict[str, Any]) -> None:
    assert curve["schema"] == 1
    assert (curve["page_size"], curve["bin_width"]) == (8, 8)
    assert curve["reserved_tokens"] == 8 * (1 + 3)
    task = make_task(make_config().task)
    longest = max(len(p.tokens) for p in task.prompts("calibrate", 0, 8))
    assert curve["context"] == longest + task.max_new_tokens
    assert set(curve["ceiling"]) == {"p05", "mean"}
    assert curve["settings"]["prompts"] == 8 and curve["settings"]["estimator"] == "exact"
    budgets = sorted({row["budget"] for row in curve["pooled"]})
    assert len(budgets) == 3 and all(b % 8 == 0 for b in budgets)
    assert budgets[0] == 40 and budgets[-1] >= curve["context"]
    pairs = [(row["trajectory"], row["budget"]) for row in curve["pooled"]]
    assert sorted(pairs) == sorted((t, b) for t in ("own", "dense") for b in budgets)
    for row in curve["pooled"]:
        assert {*PERCENTILES, "mean", "p05_low", "p05_high", "reward"} <= row.keys()
        assert 0 <= row["reward"] <= 1
    for row in curve["rows"]:
        keys = {"trajectory", "budget", "bin_start", "prompts", "tokens", "mean", "kv_tokens"}
        assert keys | {*PERCENTILES, "p05_low", "p05_high"} <= row.keys()
        assert row["bin_start"] % 8 == 0 and row["prompts"] >= 3
        assert 0 <= row["p01"] <= row["p05"] <= row["p10"] <= row["p50"] <= 1
        assert row["p05_low"] <= row["p05_high"]
        assert row["kv_tokens"] <= min(row["budget"], row["bin_start"] + 7)


def test_everything_in_the_budget_reaches_the_ceiling(curve: dict[str, Any]) -> None:
    last = max(row["budget"] for row in curve["pooled"])
    own, dense = (
        next(r for r in curve["pooled"] if (r["trajectory"], r["budget"]) == (t, last))
        for t in ("own", "dense")
    )
    assert own["p05"] == curve["ceiling"]["p05"] and own["mean"] == curve["ceiling"]["mean"]
    assert own["p05"] > 0.999 and own["reward"] == curve["dense_reward"]
    assert dense["p01"] > 0.9999 and dense["mean"] == pytest.approx(1.0, abs=1e-6)


def test_the_least_budget_is_far_below_it(curve: dict[str, Any]) -> None:
    for trajectory in ("own", "dense"):
        mine = [r for r in curve["pooled"] if r["trajectory"] == trajectory]
        means = [r["mean"] for r in sorted(mine, key=lambda r: r["budget"])]
        assert means[0] < 0.99 < means[-1]


def test_dense_trajectories_are_the_same_texts_at_every_budget(curve: dict[str, Any]) -> None:
    dense = [r for r in curve["rows"] if r["trajectory"] == "dense"]
    reached = {
        budget: [
            (r["bin_start"], r["prompts"], r["tokens"]) for r in dense if r["budget"] == budget
        ]
        for budget in {r["budget"] for r in dense}
    }
    assert len(reached) == 3
    assert len({str(bins) for bins in reached.values()}) == 1
    rewards = {r["reward"] for r in curve["pooled"] if r["trajectory"] == "dense"}
    assert rewards == {curve["dense_reward"]}


def test_the_counts_behind_the_curve_give_its_numbers(
    sweep: SweepFolder, curve: dict[str, Any]
) -> None:
    rows = table_rows(sweep.point("ca00").path / "acceptance.parquet")
    for told in curve["rows"] + curve["pooled"]:
        mine = [
            r
            for r in rows
            if (r["trajectory"], r["budget"]) == (told["trajectory"], told["budget"])
            and told.get("bin_start", r["bin_start"]) == r["bin_start"]
        ]
        counts = np.zeros(ACCEPTANCE_BINS, np.int64)
        for r in mine:
            counts[r["acceptance_bin"]] += r["count"]
        assert told["tokens"] == counts.sum()
        assert told["prompts"] == len({r["prompt"] for r in mine})
        for name in PERCENTILES:
            q = float(name[1:]) / 100
            assert told[name] == pytest.approx(percentile_of_counts(counts, q), abs=1e-12)


def test_the_curve_makes_schedules(curve: dict[str, Any]) -> None:
    for trajectory in ("own", "dense"):
        read = Curve.from_json(curve, trajectory=trajectory)
        reserved = make_config().sparsity.reserved
        cheap = cheapest_schedule(read, 0.3, reserved=reserved).schedule
        dear = cheapest_schedule(read, 0.999, reserved=reserved).schedule
        assert cheap.budgets[-1] <= dear.budgets[-1]


def test_the_result_names_the_ceiling(sweep: SweepFolder, curve: dict[str, Any]) -> None:
    metrics = result_of(sweep.point("ca00"))["metrics"]
    assert metrics["acceptance/ceiling_p05"] == curve["ceiling"]["p05"]
    assert metrics["evaluate/reward"] == curve["dense_reward"]
    progress = sweep.point("ca00").attempts()[0].read_progress()
    assert progress is not None and progress["done"] == progress["total"] == 7


# ------------------------------------------------------------------ repeatable
def test_a_repetition_and_another_seed_give_the_same_curve(curve: dict[str, Any]) -> None:
    assert measured() == curve
    assert measured(seed=77) == curve


def test_max_batch_does_not_move_the_curve(curve: dict[str, Any]) -> None:
    """In float32 the batch moves the last bits: percentiles stay, and so do the texts."""
    other = measured(rollout={"max_batch": 3})
    for a, b in zip(curve["pooled"], other["pooled"], strict=True):
        assert (a["tokens"], a["reward"]) == (b["tokens"], b["reward"])
        assert a["p05"] == pytest.approx(b["p05"], abs=1e-3)


@pytest.mark.parametrize("trajectory", ["own", "dense"])
def test_one_kind_of_trajectory_alone(trajectory: str, curve: dict[str, Any]) -> None:
    alone = measured(calibrate={"trajectories": [trajectory]})
    assert alone["pooled"] == [r for r in curve["pooled"] if r["trajectory"] == trajectory]
    assert alone["rows"] == [r for r in curve["rows"] if r["trajectory"] == trajectory]


def test_top_k_is_used_on_both_kinds_of_trajectory(curve: dict[str, Any]) -> None:
    short = measured(calibrate={"estimator": "top_k", "top_k": 2})
    assert short["settings"]["estimator"] == "top_k" and short["settings"]["top_k"] == 2
    for exact, cut in zip(curve["pooled"], short["pooled"], strict=True):
        assert exact["tokens"] == cut["tokens"]
        assert cut["mean"] < exact["mean"], (cut["trajectory"], cut["budget"])


def test_bfloat16_shows_as_a_lower_ceiling_not_as_sparsity() -> None:
    """The gap of two engines in bfloat16 is the noise floor: dense has it too."""
    narrow = measured(model={"dtype": "bfloat16"}, calibrate={"trajectories": ["own"], "ladder": 2})
    everything = narrow["pooled"][-1]
    assert 0.9 < narrow["ceiling"]["p05"] < 0.9999
    assert everything["p05"] == narrow["ceiling"]["p05"]
    assert narrow["pooled"][0]["p05"] < narrow["ceiling"]["p05"]


def test_samples_of_a_prompt_are_different_texts() -> None:
    twice = measured(calibrate={"samples": 2, "trajectories": ["own"], "ladder": 2})
    once = measured(calibrate={"samples": 1, "trajectories": ["own"], "ladder": 2})
    for a, b in zip(twice["pooled"], once["pooled"], strict=True):
        assert a["prompts"] == b["prompts"] == 8
        assert a["tokens"] > b["tokens"]


# ------------------------------------------------------------------ budgets
def test_budgets_are_rounded_up_to_pages_and_end_with_everything() -> None:
    config = make_config(calibrate={"budgets": [33, 41, 64, 9999]})
    assert budget_ladder(config, 100) == [40, 48, 64, 104]


@pytest.mark.parametrize(("page_size", "context"), [(1, 104), (4, 104), (16, 104), (64, 200)])
@pytest.mark.parametrize("ladder", [2, 5, 12])
def test_the_ladder_rises_from_the_reserved_pages_to_everything(
    page_size: int, context: int, ladder: int
) -> None:
    sparsity = {"page_size": page_size}
    config = make_config(sparsity=sparsity, calibrate={"ladder": ladder})
    budgets = budget_ladder(config, context)
    assert budgets == sorted(set(budgets)) and len(budgets) <= ladder
    assert all(b % page_size == 0 for b in budgets)
    assert context <= budgets[-1] < context + page_size


def test_a_budget_below_the_reserved_pages_is_refused() -> None:
    config = make_config(calibrate={"budgets": [16, 64]})
    with pytest.raises(UserError, match=r"16 is below the reserved pages \(32 tokens"):
        budget_ladder(config, 104)


# ------------------------------------------------------------------ what is refused, and stops
def test_greedy_decoding_has_no_curve() -> None:
    with pytest.raises(UserError, match="temperature above 0"):
        measured(rollout={"temperature": 0.0})


def test_answers_of_one_token_have_no_acceptance() -> None:
    with pytest.raises(UserError, match="first token"):
        measured(task={"max_new_tokens": 1})


def test_a_calibration_that_is_asked_to_stop_leaves_no_result(tmp_path: Path) -> None:
    from sparrow_lab.stages.calibrate import run as stage

    ctx = context_of(make_sweep(tmp_path / "s", make_config()), "ca00")
    ctx.stop.set("SIGTERM")
    with pytest.raises(Interrupted, match="SIGTERM"):
        stage(ctx)
    assert not (ctx.folder.path / "curve.json").exists()
