"""Whatever a file holds, loading and planning it give a plan or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparrow_lab.config.fields import all_paths
from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sweep.plan import make_plan

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(-1, 2, allow_nan=False),
    st.sampled_from(["dense", "tiny-s", "tau", "010", "NO", "1e-5", "", "mean", "a/b", "."]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["tau", "budget", "name", "seed", "x"]), inner, max_size=2),
    ),
    max_leaves=5,
)
PATHS = st.one_of(st.sampled_from(all_paths()), st.sampled_from(["x", "train.x", "model.name.x"]))


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an experiment file: mostly the right keys, mostly odd values."""
    base: dict[str, Any] = {}
    for path in draw(st.lists(PATHS, max_size=3)):
        holder: Any = base
        *holders, last = path.split(".")
        for key in holders:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else {}
        if isinstance(holder, dict):
            holder[last] = draw(VALUES)
    choices = st.lists(VALUES, max_size=3)
    entries = st.lists(st.dictionaries(PATHS, VALUES, max_size=2), max_size=2)
    grid = {
        "axes": draw(st.dictionaries(PATHS, choices, max_size=2)),
        "zip": draw(st.lists(st.dictionaries(PATHS, choices, max_size=2), max_size=1)),
        "exclude": draw(entries),
        "include": draw(entries),
    }
    kept = draw(st.sets(st.sampled_from(sorted(grid))))
    return {"name": "s", "base": base, "sweep": {k: grid[k] for k in sorted(kept)}}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sweeps(), st.lists(st.tuples(PATHS, VALUES), max_size=1))
def test_any_file_gives_a_plan_or_one_line(
    tmp_path: Path, sweep: dict[str, Any], options: list[tuple[str, Any]]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(sweep, indent=1))
    overrides = [f"{name}={json.dumps(value)}" for name, value in options]
    try:
        config = load_sweep(path, overrides)
        made = make_plan(config, tmp_path)
    except UserError as error:
        text = str(error)
    else:
        assert isinstance(config, SweepConfig)
        text = f"{path}: {len(made.points)} points"
    assert "\n" not in text
    assert text.startswith((str(path), "--set ")), text


def test_an_error_without_a_place_would_fail_the_test_above() -> None:
    with pytest.raises(UserError) as caught:
        make_plan(
            SweepConfig.model_validate({"name": "s", "base": {"model": {"name": "x"}}}), Path()
        )
    assert caught.value.where == "base.model.name"
