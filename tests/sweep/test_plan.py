"""Plans: which stages run, what they share, how they are named, and in what order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.schema import PointConfig, SweepConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep.plan import make_plan

ROOT = Path(__file__).parents[2]


def plan(sweep: dict[str, Any], base: dict[str, Any] | None = None, **rest: Any) -> Plan:
    """Plan a sweep written as plain values."""
    data = {"name": "s", "base": base or {}, "sweep": sweep, **rest}
    return make_plan(SweepConfig.model_validate(data), ROOT)


def stage(made: Plan, name: str) -> list[PlannedPoint]:
    return [p for p in made.points if p.stage == name]


def counts(made: Plan) -> dict[str, int]:
    return dict(Counter(p.stage for p in made.points))


TAUS = {"sparsity.schedule": ["dense", {"tau": 0.5}, {"tau": 0.9}]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smoke", {"calibrate": 1, "schedule": 2, "train": 2, "evaluate": 2}),
        ("threshold_search", {"calibrate": 4, "schedule": 18, "train": 36, "evaluate": 36}),
    ],
)
def test_the_shipped_experiments_have_so_many_points(name: str, expected: dict[str, int]) -> None:
    path = ROOT / "experiments" / f"{name}.yaml"
    assert counts(make_plan(load_sweep(path), path.parent)) == expected


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_experiment_can_be_planned(path: Path) -> None:
    config = load_sweep(path)
    name = config.base.model.name
    if name.startswith("models/") and not Path(name).is_dir():
        # a model that is fetched is not here: the plan says how to get it
        with pytest.raises(UserError, match="models fetch"):
            make_plan(config, path.parent)
        return
    made = make_plan(config, path.parent)
    assert made.name == path.stem
    # an adaptive method proposes its points as it goes
    assert made.points or config.sweep.method == "optuna"


def test_a_plan_is_whole_and_in_order() -> None:
    made = plan({"axes": {**TAUS, "seed": [0, 1], "sparsity.page_size": [4, 8]}})
    seen: dict[str, str] = {}
    for point in made.points:
        assert all(seen[needed] == name for name, needed in point.needs.items())
        assert point.id not in seen
        seen[point.id] = point.stage
        config = PointConfig.model_validate(point.config)
        assert config.model_dump(mode="json") == point.config
    assert made == Plan.from_json(made.to_json())
    assert made.verdict["metric"] == "evaluate/reward"


def test_dense_is_one_point_whatever_the_page_size() -> None:
    sparsity = {
        "sparsity.page_size": [4, 8, 16],
        "sparsity.landmark": ["mean", "minmax"],
        "sparsity.schedule": ["dense", {"tau": 0.5}],
    }
    made = plan({"axes": sparsity})
    assert counts(made) == {"calibrate": 6, "schedule": 7, "train": 7, "evaluate": 7}
    dense = [p for p in made.points if p.label.get("tau") == "dense"]
    assert {p.stage for p in dense} == {"schedule", "train", "evaluate"}
    assert all("page_size" not in p.label and "landmark" not in p.label for p in dense)
    assert all(not stage_needs_curve(p) for p in dense)


def stage_needs_curve(point: PlannedPoint) -> bool:
    return "calibrate" in point.needs


def test_curves_are_shared_by_taus_seeds_and_learning_rates() -> None:
    made = plan({"axes": {**TAUS, "seed": [0, 1, 2], "train.lr": [1e-4, 2e-4]}})
    assert counts(made) == {"calibrate": 1, "schedule": 3, "train": 18, "evaluate": 18}
    (curve,) = stage(made, "calibrate")
    with_tau = [p for p in stage(made, "schedule") if p.label["tau"] != "dense"]
    assert [p.needs for p in with_tau] == [{"calibrate": curve.id}] * 2


def test_a_calibrate_only_sweep_measures_each_combination_once() -> None:
    axes = {"sparsity.page_size": [4, 8], "seed": [0, 1], "train.lr": [1, 2]}
    made = plan({"axes": axes}, stages=["calibrate"])
    assert counts(made) == {"calibrate": 2}
    assert [p.label for p in made.points] == [
        {"model": "tiny-s", "page_size": 4},
        {"model": "tiny-s", "page_size": 8},
    ]


def test_stages_end_where_the_file_says() -> None:
    assert counts(plan({"axes": TAUS}, stages=["calibrate", "schedule"])) == {
        "calibrate": 1,
        "schedule": 3,
    }
    assert counts(plan({}, stages=["schedule", "train"])) == {"schedule": 1, "train": 1}
    with pytest.raises(UserError, match="needs the stage 'calibrate'"):
        plan({"axes": TAUS}, stages=["schedule"])


def test_labels() -> None:
    axes = {
        "model.name": ["tiny-m"],
        "sparsity.schedule": [
            {"tau": 0.86},
            {"budget": 64},
        ],
        "train.lr": [1e-4],
        "train.prompts": [8],
        "calibrate.prompts": [32],
        "train.betas": [[0.9, 0.99]],
        "task.params": [{"pairs": 12}],
        "seed": [3],
    }
    made = plan({"axes": axes})
    first = {
        "model": "tiny-m",
        "tau": 0.86,
        "seed": 3,
        "page_size": 16,
        "lr": 1e-4,
        "train_prompts": 8,
        "calibrate_prompts": 32,
        "betas": "[0.9,0.99]",
        "pairs": 12,
    }
    assert stage(made, "train")[0].label == first
    assert stage(made, "train")[1].label == {**first, "tau": "budget=64"}
    assert stage(made, "calibrate")[0].label == {
        k: v for k, v in first.items() if k in {"model", "page_size", "calibrate_prompts", "pairs"}
    }
    assert "seed" not in stage(made, "schedule")[0].label


def test_zip_include_and_exclude() -> None:
    made = plan(
        {
            "axes": {"seed": [0, 1], "sparsity.page_size": [4, 8]},
            "zip": [{"model.name": ["tiny-s", "tiny-m"], "train.lr": [1e-3, 1e-4]}],
            "exclude": [
                {"seed": 1, "sparsity.page_size": 4},
                {"model": {"name": "tiny-m"}, "seed": 1},
            ],
            "include": [{"seed": 1, "train.lr": 1e-5}, {"model": {"name": "tiny-m"}, "seed": 9}],
        },
        base={"sparsity": {"schedule": {"budget": 64}, "dense_layers": 1}},
    )
    got = [
        (p.label["model"], p.label["lr"], p.label["seed"], p.label["page_size"])
        for p in stage(made, "train")
    ]
    assert got == [
        ("tiny-s", 1e-3, 0, 4),
        ("tiny-m", 1e-4, 0, 4),
        ("tiny-s", 1e-3, 0, 8),
        ("tiny-m", 1e-4, 0, 8),
        ("tiny-s", 1e-3, 1, 8),
        ("tiny-s", 1e-5, 1, 16),
        ("tiny-m", 1e-6, 9, 16),
    ]


def test_includes_alone_are_the_points() -> None:
    made = plan({"include": [{"seed": 3}, {"seed": 4}]})
    assert [p.label["seed"] for p in stage(made, "train")] == [3, 4]


def test_an_included_point_that_the_grid_has_is_one_point() -> None:
    made = plan({"axes": {"seed": [0, 1]}, "include": [{"seed": 1}]})
    assert counts(made)["train"] == 2


def test_exclude_sees_defaults_and_the_base() -> None:
    axes = {"seed": [0, 1]}
    base = {"train": {"steps": 7}}
    made = plan({"axes": axes, "exclude": [{"train.steps": 7, "seed": 0, "threads": 1}]}, base)
    assert [p.label["seed"] for p in stage(made, "train")] == [1]


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"axes": {"seed": [0, 1]}, "exclude": [{"seed": 2}]}, "matches no combination"),
        ({"axes": {"seed": [0]}, "exclude": [{"seed": 0}]}, "every combination is excluded"),
        (
            {"axes": {f"task.params.x{i}": list(range(10)) for i in range(9)}},
            "1,000,000,000 points",
        ),
    ],
)
def test_sweeps_without_a_sensible_number_of_points(sweep: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan(sweep)


def test_ten_thousand_points_are_planned_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    taus = [{"tau": t / 1000} for t in range(500, 549)]
    axes = {
        "model.name": ["tiny-s", "tiny-m"],
        "sparsity.page_size": [4, 8],
        "sparsity.schedule": ["dense", *taus],
        "train.lr": [1e-4, 2e-4, 5e-4, 1e-3, 2e-3],
        "seed": list(range(10)),
    }
    start = time.perf_counter()
    made = plan({"axes": axes})
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f" [10,000 combinations in {seconds:.1f} s]", end="")
    assert counts(made)["train"] == 2 * 5 * 10 * (1 + 2 * 49)
    assert seconds < 20


def test_planning_and_preview_need_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from rich.console import Console
from sparrow_lab.config.load import load_sweep
from sparrow_lab.sweep.plan import make_plan
from sparrow_lab.sweep.preview import render
path = Path({str(ROOT / "experiments" / "threshold_search.yaml")!r})
Console().print(render(make_plan(load_sweep(path), path.parent)))
print("LOADED", *sorted({{m.split(".")[0] for m in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    assert "sparrow_analysis" in loaded
    assert not loaded & {"torch", "transformers", "mlflow", "datasets", "pandas", "matplotlib"}
