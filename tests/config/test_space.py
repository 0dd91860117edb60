"""Search spaces and brackets: what they hold, and mistakes with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.space import (
    Options,
    Range,
    choice_of,
    read_bracket,
    read_space,
    values_of,
)
from sparrow_lab.errors import UserError

OPTUNA = """\
name: o
sweep:
  method: optuna
  axes: {seed: [0, 1]}
  space:
    train.lr: {low: 1e-5, high: 1e-3, log: true}
    sparsity.schedule.budget: {low: 24, high: 96, step: 8}
    sparsity.page_size: {choices: [4, 8]}
  optuna: {trials: 12}
"""
BRACKET = """\
name: b
sweep:
  method: bracket
  axes: {model.name: [tiny-s, tiny-m]}
  bracket:
    field: sparsity.schedule.tau
    low: 0.05
    high: 0.97
    width: 0.02
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "s.yaml"
        path.write_text(text)
        return path

    return write


def test_a_space_is_read_in_the_order_of_the_file(file: Callable[[str], Path]) -> None:
    lr, budget, size = read_space(load_sweep(file(OPTUNA)))
    assert isinstance(lr, Range) and (lr.low, lr.high, lr.log, lr.whole) == (
        1e-5,
        1e-3,
        True,
        False,
    )
    assert isinstance(budget, Range) and (budget.whole, budget.step) == (True, 8)
    assert isinstance(size, Options) and size.values == (4, 8)
    assert size.where.endswith("s.yaml:8:5")


def test_a_bracket_is_read(file: Callable[[str], Path]) -> None:
    found = read_bracket(load_sweep(file(BRACKET)))
    assert (found.path, found.low, found.high, found.whole) == (
        "sparsity.schedule.tau", 0.05, 0.97, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "override", "place", "words"),
    [
        (OPTUNA, "sweep.method=grid", "s.yaml:5:3", "'space' is for the methods random and"),
        (BRACKET, "sweep.method=optuna", "--set", "the method optuna needs a 'space'"),
        (BRACKET, "sweep.method=grid", "s.yaml:5:3", "'bracket' belongs to the method bracket"),
        (BRACKET, "sweep.bracket.field=model.name", "s.yaml:7:10", "model.name: found 0.05"),
        (BRACKET, "sweep.bracket.field=sparsity.schedule.tua", "--set", "did you mean"),
        (BRACKET, "sweep.bracket.high=1.5", "--set", "above 0 and at most 1"),
        (BRACKET, "sweep.bracket.high=0.01", "s.yaml:5:3", "low must be less"),
        (BRACKET, "sweep.bracket.seeds=[0,0]", "s.yaml:5:3", "a seed is given twice"),
        (BRACKET, "sweep.axes.seed=[0,1]", "--set", "the bracket sets 'seed' itself"),
        (BRACKET, "stages=[calibrate,schedule]", "s.yaml:3:11", "needs the stage 'train'"),
        (OPTUNA, "sweep.space.train.lr.low=0", "s.yaml:6:5", "'log' needs a 'low' above 0"),
        (OPTUNA, "sweep.space.train.lr.low=fast", "--set", "allowed: a number"),
        (OPTUNA, "sweep.space.train.lr.low=1", "s.yaml:6:5", "low must be less"),
        (OPTUNA, "sweep.space.seed={low: 0, high: 5}", "--set", "also set by 'seed'"),
        (OPTUNA, "sweep.space.train.steps={low: 1, high: 5.5}", "--set", "a whole number"),
        (OPTUNA, "sweep.space.train.steps={low: 1}", "--set", "both 'low' and 'high', or"),
        (OPTUNA, "sweep.space.model.name={low: 1, high: 2}", "--set", "give 'choices'"),
        (OPTUNA, "sweep.space.sparsity.page_size={choices: [4, 4]}", "--set", "twice"),
        (OPTUNA, "sweep.space.sparsity.page_size={choices: []}", "--set", "is empty"),
        (OPTUNA, "sweep.space.train.lr={low: 1, high: 2, stop: 1}", "--set", "mean 'step'"),
        (OPTUNA, "sweep.space.train.kl_coef={low: 1, high: 2, step: 0.3}", "--set", "whole steps"),
        (OPTUNA, "sweep.space.train.steps={low: 1, high: 4, step: 1.5}", "--set", "whole numbers"),
        (OPTUNA, "sweep.optuna.sampler=tpa", "--set", "did you mean 'tpe'?"),
        (OPTUNA, "sweep.optuna.sampler=brute_force", "s.yaml:6:5", "has no 'step'"),
        (OPTUNA, "sweep.optuna.stage=bench", "--set", "calibrate, schedule, train, evaluate"),
        (OPTUNA, "sweep.metod=grid", "--set", "did you mean 'method'?"),
    ],
)
def test_mistakes(
    file: Callable[[str], Path], text: str, override: str, place: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_sweep(file(text), [override])
    assert "\n" not in str(caught.value)
    assert (place in (caught.value.where or ""), words in caught.value.message) == (
        True, True,
    ), str(caught.value)  # fmt: skip


def test_an_end_of_a_range_can_be_set_alone(file: Callable[[str], Path]) -> None:
    lr = read_space(load_sweep(file(OPTUNA), ["sweep.space.train.lr.low=2e-5"]))[0]
    assert isinstance(lr, Range) and (lr.low, lr.high) == (2e-5, 1e-3)


def test_values_become_settings_and_back() -> None:
    values = {"train.lr": 0.5, "sparsity.schedule.tau": 0.8, "sparsity.page_size": 4}
    choice = choice_of(values)
    assert {f.name: s.value for f, s in choice.items()}["sparsity.schedule.tau"] == {"tau": 0.8}
    assert values_of(choice) == values
    with pytest.raises(UserError, match="at most 1"):
        choice_of({"sparsity.schedule.tau": 2})


@pytest.mark.parametrize(
    ("dim", "value", "tidy"),
    [
        (Range("a", 0, 1), 0.123456, 0.1235),
        (Range("a", 0, 0.12345678), 0.12345678, 0.1235),
        (Range("a", 0.1, 0.9, step=0.1), 0.30000004, 0.3),
        (Range("a", 8, 96, whole=True, step=8), 50, 48),
        (Range("a", 1, 9, whole=True), 3.6, 4),
    ],
)
def test_numbers_are_tidied_but_stay_in_the_range(dim: Range, value: float, tidy: float) -> None:
    found = dim.tidy(value)
    assert found == min(tidy, dim.high) and dim.holds(found)
    assert isinstance(found, int) == dim.whole
