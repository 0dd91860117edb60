"""Random draws: seeded, stable under more draws, even over their range, and planned as points."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest

from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.space import Options, Range
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.plan import make_plan
from sparrow_lab.sweep.search.draw import draw

RANDOM = """
name: r
base:
  sparsity: {dense_layers: 1, reserved: {first_tokens: 8, last_tokens: 16}}
sweep:
  method: random
  axes: {seed: [0, 1]}
  space:
    train.lr: {low: 1e-5, high: 1e-3, log: true}
    sparsity.schedule: {choices: [dense, {budget: 64}, {budget: 96}]}
    train.steps: {low: 1, high: 100, log: true}
    rollout.temperature: {low: 0.5, high: 1, step: 0.1}
  random: {draws: 6}
"""


def plan(tmp_path: Path, *overrides: str) -> Plan:
    path = tmp_path / "r.yaml"
    path.write_text(RANDOM)
    return make_plan(load_sweep(path, overrides), tmp_path)


def trained(found: Plan) -> dict[str, tuple[float, ...]]:
    return {
        p.id: (p.config["train"]["lr"], p.config["train"]["steps"], p.config["seed"])
        for p in found.points
        if p.stage == "train"
    }


def test_each_draw_is_run_at_every_combination_of_the_axes(tmp_path: Path) -> None:
    runs = list(trained(plan(tmp_path)).values())
    assert len(runs) == 12
    assert len({(lr, steps) for lr, steps, _ in runs}) == 6
    assert Counter(seed for _, _, seed in runs) == {0: 6, 1: 6}


def test_more_draws_keep_the_earlier_points(tmp_path: Path) -> None:
    few, more = (trained(plan(tmp_path, f"sweep.random.draws={n}")) for n in (6, 9))
    assert few.keys() < more.keys()
    other = trained(plan(tmp_path, "sweep.random.seed=1"))
    assert not few.keys() & other.keys()


def test_another_dimension_leaves_the_draws_of_the_others_alone(tmp_path: Path) -> None:
    before = set(trained(plan(tmp_path)).values())
    after = set(
        trained(plan(tmp_path, "sweep.space.train.warmup_steps={choices: [1, 2]}")).values()
    )
    assert before == after


@pytest.mark.parametrize(
    ("dim", "quartiles"),
    [
        (Range("a", 0, 1), (0.25, 0.5, 0.75)),
        (Range("a", 1e-4, 1, log=True), (1e-3, 1e-2, 1e-1)),
        (Range("a", 0, 100, whole=True), (25, 50, 75)),
        (Range("a", 1, 10_000, whole=True, log=True), (5.9, 70.7, 841)),
    ],
    ids=["linear", "log", "whole", "whole log"],
)
def test_draws_are_even(dim: Range, quartiles: tuple[float, ...]) -> None:
    values = [draw(dim, 0, i) for i in range(4000)]
    assert all(dim.holds(v) for v in values)
    for found, expected in zip(statistics.quantiles(values, n=4), quartiles, strict=True):
        if dim.log:
            assert abs(math.log10(found) - math.log10(expected)) < 0.15
        else:
            assert abs(found - expected) < 0.04 * dim.high


def test_choices_are_even() -> None:
    counts = Counter(draw(Options("a", ("x", "y", "z")), 0, i) for i in range(3000))
    assert all(abs(count - 1000) < 120 for count in counts.values())
