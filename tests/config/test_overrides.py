"""`--set`: the same parser, the same errors, and no override without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.errors import UserError

FILE = """\
name: a
base:
  model: {name: tiny-m, warm_start: 1}
  sparsity:
    schedule: {tau: 0.5}
    reserved: {first_tokens: 8, last_tokens: 16}
  task: {params: {pairs: 12}}
sweep:
  axes:
    seed: [0, 1]
    train.lr: [1e-4]
  exclude:
    - {seed: 1}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(FILE)
    return path


def load(file: Path, *overrides: str) -> SweepConfig:
    return load_sweep(file, overrides)


def test_values_are_read_as_in_the_file(file: Path) -> None:
    config = load(file, "launch.parallel=3", "base.rollout.top_p=1", "description=NO")
    assert config.launch.parallel == 3
    assert config.base.rollout.top_p == 1.0
    assert config.description == "NO"


def test_a_path_may_start_in_base(file: Path) -> None:
    assert load(file, "rollout.top_k=5").base.rollout.top_k == 5
    assert load(file, "base.rollout.top_k=5").base.rollout.top_k == 5


def test_the_last_override_wins(file: Path) -> None:
    assert load(file, "threads=2", "threads=4").base.threads == 4


def test_a_schedule_is_replaced_as_a_whole(file: Path) -> None:
    for text in ("sparsity.schedule.budget=64", "sparsity.schedule={budget: 64}"):
        assert load(file, text).base.sparsity.schedule.model_dump() == {"budget": 64}
    assert load(file, "sparsity.schedule=dense").base.sparsity.schedule.model_dump()["dense"]


def test_sections_merge_and_other_mappings_do_not(file: Path) -> None:
    model = load(file, "model={dtype: float64}").base.model
    assert (model.name, model.warm_start, model.dtype) == ("tiny-m", 1, "float64")
    assert load(file, "task.params={chains: 2}").base.task.params == {"chains": 2}
    assert load(file, "task.params.chains=2").base.task.params == {"pairs": 12, "chains": 2}
    reserved = load(file, "sparsity.reserved.first_tokens=4").base.sparsity.reserved
    assert (reserved.first_tokens, reserved.last_tokens) == (4, 16)


def test_axes_and_list_elements(file: Path) -> None:
    axes = load(file, "sweep.axes.train.lr=[1e-3, 2e-3]").sweep.axes
    assert axes == {"seed": [0, 1], "train.lr": [1e-3, 2e-3]}
    assert load(file, "sweep.exclude.0.train.lr=1e-4").sweep.exclude == [
        {"seed": 1, "train.lr": 1e-4}
    ]
    assert load(file, "sweep.axes.seed.1=7").sweep.axes["seed"] == [0, 7]
    assert load(file, "calibrate.budgets=[8, 16]", "calibrate.budgets.0=4").base.calibrate.budgets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.lr", "no 'path=value'"),
        ("=3", "no 'path=value'"),
        ("train..lr=3", "empty part"),
        ("trian.lr=3", "no key 'trian' (did you mean 'train'?)"),
        ("train.stepz=3", "unknown key 'stepz' in 'base.train' (did you mean 'steps'?)"),
        ("train.steps=3.5", "base.train.steps: found 3.5; allowed: a whole number"),
        ("train.steps=", "found nothing"),
        ("train.steps=[", "ends too early"),
        ("launch.paralel=2", "did you mean 'parallel'?"),
        ("sparsity.schedule.tua=2", "did you mean 'tau'?"),
        ("sparsity.schedule.tau=2", "at most 1"),
        ("seed.x=2", "base.seed: found a mapping with x"),
        ("name.x=2", "'name' is the text 'a', which has no 'x'"),
        ("sweep.exclude.5.seed=2", "has 1 elements, none at 5"),
        ("sweep.axes.sed=[1]", "no field 'sed' (did you mean 'seed'?)"),
        ("stages=[evaluate]", "'evaluate' needs 'train'"),
        ("seed=3", "no effect, because the sweep sets 'seed'"),
        ("base.train={lr: 3}", "no effect, because the sweep sets 'train.lr'"),
    ],
)
def test_mistakes_name_the_option(file: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load(file, text)
    assert caught.value.where == f"--set {text}"
    assert words in caught.value.message


def test_an_override_that_only_included_points_see_has_an_effect(file: Path) -> None:
    file.write_text("name: a\nsweep: {axes: {seed: [0]}, include: [{train.lr: 1e-3}]}\n")
    assert load(file, "seed=3").base.seed == 3
