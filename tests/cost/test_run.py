from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparrow_analysis.cost import (
    ModelShape,
    decode_lengths,
    decode_step_cost,
    estimate_parts,
    estimate_run,
    hardware_names,
    largest_batch,
    load_hardware,
    load_shape,
    rl_step,
    rollout_seconds,
    scheduled_step_cost,
    step_seconds,
    trajectory_cost,
)
from sparrow_analysis.cost.fit import fit_roofline
from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.presets import load_preset
from sparrow_lab.sparsity.schedule import Schedule

H200 = load_hardware("h200")


def qwen(size: str) -> ModelShape:
    shape = load_shape(f"qwen3-{size}")
    assert shape is not None
    return shape


def config(**sections: Any) -> PointConfig:
    return PointConfig.model_validate(sections)


def test_profiles_have_the_intensities_of_their_data_sheets() -> None:
    assert set(hardware_names()) == {"h100", "h200", "b200", "cpu-2-core"}
    found = {n: round(load_hardware(n).intensity) for n in ("h100", "h200", "b200")}
    assert found == {"h100": 295, "h200": 206, "b200": 281}
    assert load_hardware("cpu-2-core").rough and not H200.rough
    assert all(load_hardware(n).source for n in hardware_names())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flops": -1}, "flops must be a positive number, found -1"),
        ({"flops": "fast"}, "found 'fast'"),
        ({"flops": float("nan")}, "found nan"),
        ({"memory": True}, "found True"),
        ({"rough": 1}, "rough must be true or false"),
        ({"flop": 1}, "unknown key 'flop' (did you mean 'flops'?)"),
    ],
)
def test_a_bad_profile_is_one_clear_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "mine.json"
    good = {k: v for k, v in dataclasses.asdict(H200).items() if k != "name"}
    path.write_text(json.dumps(good))
    assert load_hardware(str(path)) == dataclasses.replace(H200, name="mine")
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(UserError) as caught:
        load_hardware(str(path))
    assert says in str(caught.value)


def test_unknown_profiles(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'h200'"):
        load_hardware("h20")
    with pytest.raises(UserError, match="cannot be read"):
        load_hardware(str(tmp_path / "none.json"))
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(UserError, match="one object"):
        load_hardware(str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match="'bandwidth' is missing"):
        load_hardware(str(tmp_path / "x.json"))


def test_the_first_token_comes_from_the_prefill() -> None:
    assert decode_lengths(10, 4).tolist() == [11, 12, 13]
    assert decode_lengths(10, 1).size == 0 == decode_lengths(10, 0).size
    with pytest.raises(ValueError, match="0 or more"):
        decode_lengths(-1, 3)


def test_a_trajectory_is_the_sum_of_its_steps() -> None:
    shape, schedule = qwen("1.7b"), load_preset("qwen3-1.7b-0.86")
    cost = trajectory_cost(shape, 100, 5000, schedule, batch=8)
    lengths = np.arange(101, 5100)
    by_hand = sum(
        float(decode_step_cost(shape, int(n), 8, schedule.budget_at(int(n))).total.flops)
        for n in lengths
    )
    assert cost.steps == 4999
    assert float(cost.decode.total.flops) == pytest.approx(by_hand, rel=1e-9)
    assert cost.attended_mean == schedule.attended_for(lengths).mean()
    assert cost.eflops(0) == pytest.approx(float(cost.total.flops))


def test_a_dense_schedule_is_no_schedule() -> None:
    shape = qwen("4b")
    none, dense = (trajectory_cost(shape, 50, 900, s) for s in (None, Schedule.dense()))
    assert none.decode == dense.decode and none.attended_mean == dense.attended_mean


def test_a_trajectory_without_steps() -> None:
    cost = trajectory_cost(qwen("1.7b"), 100, 1, Schedule.fixed(64, 16))
    assert cost.steps == 0 and float(cost.decode.total.flops) == 0
    assert np.isnan(cost.attended_mean) and cost.eflops(200) > 0
    assert rollout_seconds(qwen("1.7b"), H200, 100, 50, sequences=0) == 0


def test_the_schedules_settings_reach_the_step() -> None:
    shape = qwen("4b")
    schedule = Schedule.fixed(512, 32, landmark="minmax", score="softmax_max", dense_layers=5)
    expected = decode_step_cost(shape, 4000, 2, 512, 32, 5, landmark="minmax", score="softmax_max")
    assert scheduled_step_cost(shape, 4000, schedule, 2) == expected


def test_time_is_near_what_the_papers_engine_measured() -> None:
    """Decode of Qwen3-1.7B at batch 16 and budget 1024 on one H200: 4.59, 5.13, 5.41 ms.

    The overhead a layer comes from these numbers, so this checks the slope in length only.
    """
    shape, schedule = qwen("1.7b"), Schedule.fixed(1024, 16)
    for length, measured in ((16_384, 4.59e-3), (24_576, 5.13e-3), (32_768, 5.41e-3)):
        cost = scheduled_step_cost(shape, length, schedule, 16)
        assert step_seconds(cost, shape, H200, 16) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("size", "measured"), [("1.7b", 2.21), ("4b", 2.41), ("8b", 2.06), ("14b", 1.49)]
)
def test_speedups_in_time_are_nearer_to_the_measured_than_eflops(
    size: str, measured: float
) -> None:
    """240 requests on four H200, so 60 each. A mean answer of 20k tokens is an assumption."""
    shape, schedule = qwen(size), load_preset(f"qwen3-{size}-0.86")
    dense, sparse = (
        rollout_seconds(shape, H200, 200, 20_000, s, sequences=60, batch=60)
        for s in (None, schedule)
    )
    assert dense / sparse == pytest.approx(measured, rel=0.15)
    full, less = (
        trajectory_cost(shape, 200, 20_000, s, 60).eflops(H200.intensity) for s in (None, schedule)
    )
    assert abs(full / less - measured) > abs(dense / sparse - measured)


def test_rollout_time_grows_with_waves_not_below_the_batch() -> None:
    shape = qwen("1.7b")
    one = rollout_seconds(shape, H200, 10, 100, sequences=8, batch=8)
    two = rollout_seconds(shape, H200, 10, 100, sequences=16, batch=8)
    assert two == pytest.approx(2 * one)
    assert rollout_seconds(shape, H200, 10, 100, sequences=8, batch=99) == one


def test_largest_batch_leaves_room_for_the_weights() -> None:
    shape = qwen("14b")
    n = largest_batch(shape, H200, 32_000)
    used = 2 * shape.parameters + n * 32_000 * 163_840
    assert used <= 141e9 < used + 32_000 * 163_840
    assert largest_batch(shape, load_hardware("cpu-2-core"), 100) == 0
    assert largest_batch(shape, H200, 0) == largest_batch(shape, H200, 1)


def test_an_rl_step_gains_less_than_its_rollout() -> None:
    shape, schedule = qwen("1.7b"), load_preset("qwen3-1.7b-0.86")
    dense, sparse = (
        rl_step(shape, H200, 200, 12_000, s, sequences=64, batch=32) for s in (None, schedule)
    )
    assert dense.recompute == sparse.recompute and dense.train == 3 * dense.recompute
    assert 1 < dense.seconds / sparse.seconds < dense.rollout / sparse.rollout
    shared = rl_step(shape, H200, 200, 99, sequences=8, batch=8, samples=8)
    alone = rl_step(shape, H200, 200, 99, sequences=8, batch=8)
    assert shared.rollout < alone.rollout and shared.recompute < alone.recompute
    assert rl_step(shape, H200, 200, 99, sequences=8, batch=8, on_policy=True).recompute == 0
    again = rl_step(shape, H200, 200, 99, sequences=8, batch=8, epochs=2, checkpointing=True)
    assert again.train == pytest.approx(8 * again.recompute)


@pytest.mark.parametrize("stage", ["calibrate", "schedule", "train", "evaluate"])
def test_every_stage_has_an_estimate_that_grows_with_its_work(stage: str) -> None:
    shape = qwen("0.6b")
    small = config(calibrate={"prompts": 8}, train={"steps": 10, "evaluate_prompts": 8})
    large = config(calibrate={"prompts": 32}, train={"steps": 40, "evaluate_prompts": 32})
    seconds = [estimate_run(shape, H200, c, stage, tokens=64) for c in (small, large)]
    assert 0 < seconds[0] < seconds[1] < float("inf")
    longer = estimate_run(shape, H200, small, stage, tokens=128)
    assert longer > seconds[0]


def test_the_parts_add_up_and_say_what_they_are() -> None:
    parts = estimate_parts(qwen("0.6b"), H200, config(), "train", tokens=64)
    assert parts.seconds == parts.rollout + parts.recompute + parts.train + parts.evaluate
    assert min(parts.rollout, parts.train, parts.evaluate) > 0
    # one update a step: its own forward pass gives the dense log-probs
    assert parts.recompute == 0
    twice = estimate_parts(qwen("0.6b"), H200, config(train={"epochs": 2}), "train", tokens=64)
    assert twice.recompute > 0 and twice.train == pytest.approx(2 * parts.train)
    assert (parts * 2 + parts).seconds == pytest.approx(3 * parts.seconds)
    with pytest.raises(ValueError, match="no such stage"):
        estimate_run(qwen("0.6b"), H200, config(), "bench")


def test_a_stated_schedule_is_used_and_a_tau_counts_as_dense() -> None:
    shape = qwen("1.7b")

    def seconds(source: Any, **options: Any) -> float:
        point = config(sparsity={"schedule": source})
        return estimate_run(shape, H200, point, prompt=100, tokens=8000, **options)

    dense = seconds({"dense": True})
    assert seconds({"tau": 0.86}) == dense
    assert seconds({"preset": "qwen3-1.7b-0.86"}) == dense
    assert seconds({"budget": 512}) < seconds({"budget": 1024}) < dense
    known = load_preset("qwen3-1.7b-0.86")
    assert seconds({"tau": 0.86}, schedule=known) < dense
    assert seconds({"budget": 500}) == seconds({"budget": 512})
    with pytest.raises(UserError, match="below the reserved pages"):
        seconds({"budget": 16})


def test_answers_default_to_the_tasks_cap() -> None:
    capped = config(task={"max_new_tokens": 32})
    shape = qwen("0.6b")
    assert estimate_run(shape, H200, capped) == estimate_run(shape, H200, config(), tokens=32)
    assert estimate_run(shape, H200, config()) == estimate_run(shape, H200, config(), tokens=256)


def test_the_fit_finds_planted_coefficients() -> None:
    rng = np.random.default_rng(0)
    planted = dataclasses.replace(H200, flops_share=0.5, bandwidth_share=0.8, layer_overhead=2e-5)
    flops, moved = rng.uniform(1e12, 1e14, 40), rng.uniform(1e9, 1e11, 40)
    seconds = flops / (0.5 * H200.flops) + moved / (0.8 * H200.bandwidth) + 28 * 2e-5
    fit = fit_roofline(H200, flops, moved, seconds, layers=28)
    assert fit.hardware.flops_share == pytest.approx(planted.flops_share)
    assert fit.hardware.bandwidth_share == pytest.approx(planted.bandwidth_share)
    assert fit.hardware.layer_overhead == pytest.approx(planted.layer_overhead)
    assert fit.relative_error < 1e-9 and "40 measured steps" in fit.hardware.source
    noisy = fit_roofline(H200, flops, moved, seconds * rng.uniform(0.95, 1.05, 40), layers=28)
    assert noisy.hardware.bandwidth_share == pytest.approx(0.8, rel=0.1)
    assert 0 < noisy.relative_error < 0.06


def test_a_fit_needs_enough_real_times() -> None:
    with pytest.raises(ValueError, match="at least three steps"):
        fit_roofline(H200, [1, 2], [1, 2], [1, 2], 28)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            fit_roofline(H200, [1, 2, 3], [1, 2, 3], [1, 2, bad], 28)
