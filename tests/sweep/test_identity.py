"""Ids: the same today, tomorrow and after an upgrade; different whenever a result may be."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.config import later
from sparrow_lab.config.fields import all_paths, lookup
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.canonical import defaults
from sparrow_lab.sweep.identity import canonical_json, digest
from sparrow_lab.sweep.plan import make_plan

BASE: dict[str, Any] = {
    "model": {"name": "tiny-m", "warm_start": 0},
    "sparsity": {
        "page_size": 8,
        "dense_layers": 1,
        "reserved": {"first_tokens": 8, "last_tokens": 16},
        "schedule": {"tau": 0.86},
    },
    "train": {"lr": 5e-4, "steps": 50},
    "seed": 3,
}


GOLDEN_TAU = {
    "calibrate": "d9372035e902ebcb",
    "schedule": "94b097b90b5c3a35",
    "train": "67e79655414e1709",
    "evaluate": "ee18632777af0b9b",
}
GOLDEN_DENSE = {
    "schedule": "dc45a21f265eb5a6",
    "train": "8266870942b0c304",
    "evaluate": "c8ca7b43773e4dbb",
}
GOLDEN_BUDGET = {
    "schedule": "3798a94d5ce2dee4",
    "train": "d4ae1eaa75ef59f1",
    "evaluate": "36cd78657c30ecff",
}


def plan(base: dict[str, Any], sweep: dict[str, Any] | None = None, **rest: Any) -> Plan:
    data = {"name": "s", "base": base, "sweep": sweep or {}, **rest}
    return make_plan(SweepConfig.model_validate(data), Path())


def ids(base: dict[str, Any], **rest: Any) -> dict[str, str]:
    """Return the id of each stage of a single point."""
    return {p.stage: p.id for p in plan(base, **rest).points}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return BASE with one field set."""
    base = copy.deepcopy(BASE)
    *holders, last = path.split(".")
    section = base
    for key in holders:
        section = section.setdefault(key, {})
    section[last] = value
    return base


def test_golden_ids() -> None:
    """These literals may only change together with SCHEMA_VERSION: finished work hangs on them."""
    assert ids(BASE) == GOLDEN_TAU
    assert ids(changed("sparsity.schedule", "dense")) == GOLDEN_DENSE
    assert ids(changed("sparsity.schedule", {"budget": 64})) == GOLDEN_BUDGET


def test_golden_canonical_json() -> None:
    value = {"b": [1, 1.0, 1e-5, 0.1, -0.0, 1e22], "a": {"ü": None, "t": True}}
    text = '{"a":{"t":true,"\\u00fc":null},"b":[1,1.0,1e-05,0.1,0.0,1e+22]}'
    assert canonical_json(value) == text
    assert digest(value) == "591536caa3a2fb9c"


def test_numbers_that_have_no_json_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_a_text_that_looks_like_a_negative_zero_is_kept() -> None:
    assert json.loads(canonical_json(["-0.0", -0.05])) == ["-0.0", -0.05]


SCIENCE: dict[str, tuple[Any, str]] = {
    "model.name": ("tiny-s", "calibrate"),
    "model.warm_start": (1, "calibrate"),
    "model.dtype": ("float64", "calibrate"),
    "model.device": ("cuda", "calibrate"),
    "task.params": ({"pairs": 12}, "calibrate"),
    "task.max_new_tokens": (20, "calibrate"),
    "sparsity.page_size": (4, "calibrate"),
    "sparsity.landmark": ("minmax", "calibrate"),
    "sparsity.score": ("softmax_max", "calibrate"),
    "sparsity.dense_layers": (0, "calibrate"),
    "sparsity.reserved": ({"first_pages": 1, "last_pages": 2}, "calibrate"),
    "sparsity.reserved.first_tokens": (16, "calibrate"),
    "sparsity.reserved.last_tokens": (8, "calibrate"),
    "sparsity.schedule": ({"tau": 0.9}, "schedule"),
    "rollout.temperature": (0.9, "calibrate"),
    "rollout.top_p": (0.9, "calibrate"),
    "rollout.top_k": (5, "calibrate"),
    "rollout.min_p": (0.1, "calibrate"),
    "rollout.max_batch": (8, "calibrate"),
    "calibrate.prompts": (65, "calibrate"),
    "calibrate.samples": (3, "calibrate"),
    "calibrate.budgets": ([64], "calibrate"),
    "calibrate.ladder": (11, "calibrate"),
    "calibrate.bin_width": (8, "calibrate"),
    "calibrate.min_prompts": (15, "calibrate"),
    "calibrate.bootstrap": (100, "calibrate"),
    "calibrate.confidence": (0.9, "calibrate"),
    "calibrate.trajectories": (["own"], "calibrate"),
    "calibrate.rule": ("lower", "schedule"),
    "calibrate.estimator": ("top_k", "calibrate"),
    "train.steps": (51, "train"),
    "train.prompts": (4, "train"),
    "train.samples": (8, "train"),
    "train.minibatches": (2, "train"),
    "train.epochs": (2, "train"),
    "train.lr": (1e-4, "train"),
    "train.warmup_steps": (5, "train"),
    "train.betas": ([0.9, 0.95], "train"),
    "train.weight_decay": (0.1, "train"),
    "train.grad_clip": (2.0, "train"),
    "train.clip_low": (0.1, "train"),
    "train.clip_high": (0.2, "train"),
    "train.dual_clip": (3.0, "train"),
    "train.tis_cap": (None, "train"),
    "train.advantage_std": (False, "train"),
    "train.loss_average": ("sequence", "train"),
    "train.kl_coef": (0.1, "train"),
    "train.evaluate_every": (5, "train"),
    "train.evaluate_prompts": (64, "train"),
    "train.checkpoint_every": (10, "train"),
    "seed": (4, "train"),
    "threads": (2, "calibrate"),
}
"""A new value of every science field, and the first stage whose result it can change."""

NOT_ALONE = {
    "task.name": "fixed by the built-in model",
    "task.dataset": "of other tasks; see the test of files",
    "task.sha256": "filled in",
    "model.fingerprint": "filled in",
    "calibrate.top_k": "only with the top_k estimator",
    "sparsity.reserved.first_pages": "not beside tokens",
    "sparsity.reserved.last_pages": "not beside tokens",
}
STAGES = ["calibrate", "schedule", "train", "evaluate"]


def test_every_science_field_is_in_this_table() -> None:
    fields = {p for p in all_paths() if not lookup(p, None).is_section}
    forms = {p for p in fields if p.startswith("sparsity.schedule.")}
    assert fields - forms == set(SCIENCE) | set(NOT_ALONE)


@pytest.mark.parametrize("path", SCIENCE)
def test_a_science_field_changes_the_ids_from_its_stage_on(path: str) -> None:
    value, first = SCIENCE[path]
    before, after = ids(BASE), ids(changed(path, value))
    reached = STAGES.index(first)
    for i, name in enumerate(STAGES):
        assert (before[name] != after[name]) == (i >= reached), name


@pytest.mark.parametrize("path", [p for p in SCIENCE if p.startswith("calibrate.")])
def test_what_no_stage_reads_changes_nothing(path: str) -> None:
    """Without a tau there is no curve and no choice, but still a measurement."""
    choice = {"budgets", "ladder", "rule", "trajectories"}
    for schedule in ("dense", {"budget": 64}):
        base = changed("sparsity.schedule", schedule)
        other = copy.deepcopy(base)
        other["calibrate"] = {path.split(".")[1]: SCIENCE[path][0]}
        assert (ids(base) == ids(other)) == (path.split(".")[1] in choice)


def test_dense_ignores_how_pages_would_be_chosen() -> None:
    dense = changed("sparsity.schedule", "dense")
    for path in (p for p in SCIENCE if p.startswith("sparsity.")):
        if path == "sparsity.schedule":
            continue
        other = changed(path, SCIENCE[path][0])
        other["sparsity"]["schedule"] = "dense"
        assert ids(other) == ids(dense), path


@pytest.mark.parametrize(
    "rest",
    [
        {"description": "other words"},
        {"launch": {"parallel": 7, "timeout_min": 5, "retries": 0, "grace_s": 1}},
        {"tracking": {"uri": "http://x", "experiment": "e", "enabled": False}},
        {"verdict": {"fall": 0.5, "floor": 0.1, "stay": 4}},
    ],
    ids=lambda rest: next(iter(rest)),
)
def test_how_and_where_work_runs_is_outside_every_id(rest: dict[str, Any]) -> None:
    assert ids(BASE, **rest) == ids(BASE)


def test_the_name_is_outside_every_id() -> None:
    config = SweepConfig.model_validate({"name": "other", "base": BASE})
    assert {p.stage: p.id for p in make_plan(config, Path()).points} == ids(BASE)


def test_one_and_one_point_nothing_are_one_number() -> None:
    assert ids(changed("rollout.temperature", 1)) == ids(BASE)
    assert ids(changed("train.weight_decay", -0.0)) == ids(BASE)


def test_defaults_written_out_are_defaults() -> None:
    whole = SweepConfig.model_validate({"name": "s", "base": BASE}).base.model_dump(mode="json")
    assert ids(whole) == ids(BASE)


def test_the_order_of_budgets_is_the_writers_taste() -> None:
    assert ids(changed("calibrate.budgets", [64, 32])) == ids(
        changed("calibrate.budgets", [32, 64])
    )


def test_a_field_that_a_later_version_adds_leaves_old_ids_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if `train.kl_coef` had been added after BASE was run."""
    monkeypatch.setitem(later.LATER, "train.kl_coef", 0.0)
    upgraded, used = ids(BASE), ids(changed("train.kl_coef", 0.5))
    monkeypatch.delitem(later.LATER, "train.kl_coef")
    assert upgraded["calibrate"] == ids(BASE)["calibrate"]
    assert upgraded["train"] != ids(BASE)["train"], "left out of the hash"
    assert used == ids(changed("train.kl_coef", 0.5)), "in the hash once it is used"


@pytest.mark.parametrize("path", later.LATER)
def test_a_later_field_has_its_default_in_the_schema(path: str) -> None:
    section, _, key = path.partition(".")
    assert defaults()[section][key] == later.LATER[path]
    written = changed(path, later.LATER[path])
    assert ids(written) == ids(BASE) == GOLDEN_TAU


def shuffled(value: Any, data: st.DataObject) -> Any:
    """Return a copy with the keys of every mapping in another order."""
    if not isinstance(value, dict):
        return value
    keys = data.draw(st.permutations(list(value)))
    return {key: shuffled(value[key], data) for key in keys}


AXES = {
    "sparsity.schedule": ["dense", {"tau": 0.5}, {"tau": 0.9}],
    "sparsity.page_size": [4, 8],
    "seed": [0, 1],
    "train.lr": [1e-4, 1e-3],
}


@settings(max_examples=40)
@given(st.data())
def test_the_order_of_keys_axes_and_values_never_changes_ids(data: st.DataObject) -> None:
    axes = {
        name: data.draw(st.permutations(values)) for name, values in shuffled(AXES, data).items()
    }
    before = plan(BASE, {"axes": AXES})
    after = plan(shuffled(BASE, data), {"axes": axes})
    assert {(p.id, p.stage) for p in before.points} == {(p.id, p.stage) for p in after.points}


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SCIENCE)),
    st.sampled_from(sorted(SCIENCE)),
)
def test_two_changes_are_not_one(one: str, other: str) -> None:
    """No two fields can stand for each other in a hash."""
    if one == other or one.startswith(other) or other.startswith(one):
        return
    first, second = ids(changed(one, SCIENCE[one][0])), ids(changed(other, SCIENCE[other][0]))
    assert first["evaluate"] != second["evaluate"]


@settings(max_examples=60)
@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3))
def test_floats_are_told_apart_exactly(one: float, other: float) -> None:
    same = ids(changed("train.lr", one)) == ids(changed("train.lr", other))
    assert same == (one == other)


def test_extending_a_grid_keeps_what_is_there() -> None:
    small = {p.id for p in plan(BASE, {"axes": {"seed": [0, 1]}}).points}
    large = {p.id for p in plan(BASE, {"axes": {"seed": [0, 1, 2, 3]}}).points}
    assert small < large
    assert len(large - small) == 4, "two trainings and their evaluations"


def test_a_schedule_file_counts_by_its_content(tmp_path: Path) -> None:
    text = {
        "schema": 1,
        "page_size": 8,
        "edges": [0],
        "budgets": [64],
        "dense_layers": 1,
        "reserved": {"first_tokens": 8, "last_tokens": 16},
    }
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(text))
    b.write_text(json.dumps(text))
    one = ids(changed("sparsity.schedule", {"file": str(a)}))
    assert one == ids(changed("sparsity.schedule", {"file": str(b)}))
    b.write_text(json.dumps({**text, "budgets": [72]}))
    assert one["schedule"] != ids(changed("sparsity.schedule", {"file": str(b)}))["schedule"]


def test_a_data_file_counts_by_its_content(tmp_path: Path) -> None:
    base = {"model": {"name": "org/model"}, "sparsity": {"schedule": "dense"}}
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (a, b):
        path.write_text('{"prompt": "q", "answer": 1}\n')
    task = {"name": "jsonl", "dataset": str(a)}
    one = ids({**base, "task": task})
    assert one == ids({**base, "task": {**task, "dataset": str(b)}})
    b.write_text('{"prompt": "q", "answer": 2}\n')
    assert one["schedule"] != ids({**base, "task": {**task, "dataset": str(b)}})["schedule"]


def test_a_tasks_defaults_are_written_out() -> None:
    """So that a default that changes later makes another point, not a stale answer."""
    written = changed("task.params", {"pairs": 16, "chains": 4})
    assert ids(written) == ids(BASE)
    point = plan(BASE).points[0]
    assert point.config["task"]["params"]["pairs"] == 16
    assert point.config["task"]["max_new_tokens"] == 36
