"""The `sweep:` section: every value is checked where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.config.fields import all_paths, lookup
from sparrow_lab.config.grid import read_grid
from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.errors import UserError


@pytest.mark.parametrize(
    ("sweep", "where", "words"),
    [
        ("axes: {sparsity.page_sise: [4]}", "4:10", "(did you mean 'sparsity.page_size'?)"),
        ("axes: {page_size: [4]}", "4:10", "did you mean 'sparsity.page_size'?"),
        ("axes: {prompts: [4]}", "4:10", "'calibrate.prompts' or 'train.prompts'?"),
        ("axes: {train.lr.x: [4]}", "4:10", "no field 'train.lr.x'"),
        ("axes: {seed: []}", "4:10", "the axis 'seed' has no values"),
        ("axes: {seed: 3}", "4:16", "found 3; allowed: a list"),
        ("axes: {seed: [0, 1, 0]}", "4:23", "0 twice; first at s.yaml:4:17"),
        ("axes: {train.lr: [1, 2, 1.0]}", "4:27", "twice"),
        ("axes: {sparsity.schedule: [dense, {dense: true}]}", "4:37", "twice"),
        ("axes: {seed: [0, one]}", "4:20", "seed: found the text 'one'; allowed: a whole number"),
        ("axes: {seed: [0, 1.5]}", "4:20", "found 1.5"),
        ("axes: {sparsity.schedule: [{tau: 0.5}, {tau: 2}]}", "4:48", "schedule.tau: found 2"),
        ("axes: {sparsity.schedule.tau: [0.5, 2]}", "4:39", "at most 1"),
        ("axes: {model: [{nmae: tiny-s}]}", "4:19", "did you mean 'model.name'?"),
        ("axes: {model: [3]}", "4:18", "found 3; allowed: a mapping with name"),
        ("zip: [{seed: [0, 1], train.lr: [1]}]", "4:9", "'seed' has 2, 'train.lr' has 1"),
        ("zip: [{}]", "4:9", "empty"),
        ("zip: [{seed: []}]", "4:9", "no values"),
        ("zip: [{seed: [0, 0], train.lr: [1, 1]}]", "4:20", "twice"),
        ("axes: {seed: [0]}\n  zip: [{seed: [1]}]", "5:9", "'seed' is set twice"),
        ("axes: {model: [{name: tiny-s}], model.name: [tiny-m]}", "4:35", "set twice"),
        ("axes: {sparsity.schedule: [dense], sparsity.schedule.tau: [1]}", "4:38", "set twice"),
        ("exclude: [{}]", "4:13", "exclude every point"),
        ("exclude: [{sed: 1}]", "4:14", "did you mean 'seed'?"),
        ("exclude: [{seed: x}]", "4:20", "found the text 'x'"),
        ("include: [{seed: x}]", "4:20", "found the text 'x'"),
        ("include: [{model: {name: a}, model.name: b}]", "4:32", "set twice"),
        ("axis: {}", "4:3", "did you mean 'axes'?"),
    ],
)
def test_mistakes(tmp_path: Path, sweep: str, where: str, words: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"name: a\n\nsweep:\n  {sweep}\n")
    with pytest.raises(UserError) as caught:
        load_sweep(file)
    message = caught.value.message.replace(f"{tmp_path}/", "")
    assert words in message
    assert str(caught.value.where).removeprefix(f"{file}:") == where


def test_a_config_built_in_python_is_checked_too() -> None:
    config = SweepConfig.model_validate({"name": "a", "sweep": {"axes": {"seed": [0, "x"]}}})
    with pytest.raises(UserError, match="found the text 'x'") as caught:
        read_grid(config)
    assert caught.value.where == "sweep.axes.seed[1]"


def test_values_are_stored_as_the_schema_stores_them() -> None:
    axes = {"train.lr": [1], "sparsity.schedule": ["dense"], "model": [{"name": "tiny-m"}]}
    config = SweepConfig.model_validate({"name": "a", "sweep": {"axes": axes}})
    settings = {
        field.name: setting.value
        for axis in read_grid(config).axes
        for field, setting in axis.choices[0].items()
    }
    assert settings == {
        "train.lr": 1.0,
        "sparsity.schedule": {"dense": True},
        "model.name": "tiny-m",
    }
    assert isinstance(settings["train.lr"], float)


def test_every_path_is_found_and_free_options_are_free() -> None:
    for path in all_paths():
        assert lookup(path, None).name == path
    assert lookup("task.params.hops", None).keys == ("task", "params", "hops")


@given(st.sampled_from(all_paths()), st.data())
def test_a_path_with_one_letter_lost_is_an_error_that_names_a_path(
    path: str, data: st.DataObject
) -> None:
    drop = data.draw(st.integers(0, len(path) - 1))
    wrong = path[:drop] + path[drop + 1 :]
    if wrong in all_paths() or wrong.startswith("task.params."):
        return
    with pytest.raises(UserError, match="no field"):
        lookup(wrong, "x")
