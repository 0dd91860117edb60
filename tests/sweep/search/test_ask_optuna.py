"""Optuna's proposals: a function of the trials before, inside the space, without repetition."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparrow_lab.config.methods import OptunaConfig
from sparrow_lab.config.space import Dim, Options, Range, name_of, size_of
from sparrow_lab.sweep.search.ask_optuna import Asker, fits
from sparrow_lab.sweep.search.trials import Outcome, Trial

SPACE: list[Dim] = [
    Range("lr", 1e-6, 1.0, log=True),
    Range("budget", 8, 96, whole=True, step=8),
    Options("schedule", ("dense", {"tau": 0.5}, 4)),
]
FINITE: list[Dim] = [Range("a", 0, 0.3, step=0.1), Options("b", (True, None))]


def value(values: dict[str, Any]) -> float:
    far = abs(math.log10(values["lr"]) + 2) + abs(values["budget"] - 40) / 20
    return 5 - far + (values["schedule"] == {"tau": 0.5})


def search(count: int, settings: OptunaConfig, space: list[Dim] = SPACE) -> list[Trial]:
    """One trial after the other, the study made anew for each."""
    trials: list[Trial] = []
    for number in range(count):
        values = Asker(space, settings, trials).ask(number)
        kind = Outcome("done", value(values) if space is SPACE else float(number))
        trials.append(Trial(number, values, outcome=kind))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_trials_lead_to_the_same_proposal(sampler: str) -> None:
    settings = OptunaConfig(sampler=sampler, startup=4, seed=3)  # type: ignore[arg-type]
    first, second = search(12, settings), search(12, settings)
    assert [t.values for t in first] == [t.values for t in second]
    again = Asker(SPACE, settings, first[:9]).ask(9)
    assert again == first[9].values
    other = search(3, OptunaConfig(sampler=sampler, startup=4, seed=4))  # type: ignore[arg-type]
    assert [t.values for t in other] != [t.values for t in first[:3]]


def test_tpe_learns() -> None:
    trials = search(40, OptunaConfig(startup=8))
    late = sum(value(t.values) for t in trials[-10:]) / 10
    early = sum(value(t.values) for t in trials[:10]) / 10
    assert late > early + 1
    random = search(40, OptunaConfig(sampler="random"))
    assert max(value(t.values) for t in trials) >= max(value(t.values) for t in random)


def test_a_direction_is_heeded() -> None:
    settings = OptunaConfig(startup=6, direction="minimize")
    trials = search(36, settings)
    assert sum(value(t.values) for t in trials[-8:]) < sum(value(t.values) for t in trials[:8])


def test_proposals_lie_in_the_space_and_are_tidy() -> None:
    for trial in search(20, OptunaConfig(startup=5)):
        assert fits(SPACE, trial.values)
        assert isinstance(trial.values["budget"], int) and trial.values["budget"] % 8 == 0
        assert len(f"{trial.values['lr']:.12g}".replace("0", "").replace(".", "")) <= 9


def test_trials_under_way_are_kept_away_from() -> None:
    """Several proposals in a row, none of them told, are all different."""
    settings = OptunaConfig(startup=2)
    asker = Asker(SPACE, settings, search(6, settings))
    asked = [name_of(asker.ask(number)) for number in range(6, 12)]
    assert len(set(asked)) == 6


def test_a_failed_trial_has_no_value() -> None:
    settings = OptunaConfig(startup=2)
    good = search(5, settings)
    failed = [*good, Trial(5, good[0].values, outcome=Outcome("failed", None, "no memory"))]
    assert fits(SPACE, Asker(SPACE, settings, failed).ask(6))


@pytest.mark.parametrize("sampler", ["tpe", "random", "brute_force"])
def test_a_finite_space_is_tried_once_each(sampler: str) -> None:
    settings = OptunaConfig(sampler=sampler, startup=3)  # type: ignore[arg-type]
    trials = search(8, settings, FINITE)
    assert size_of(FINITE) == 8
    assert len({name_of(t.values) for t in trials}) == 8
    assert Asker(FINITE, settings, trials).used_up()
    assert not Asker(FINITE, settings, trials[:7]).used_up()


@pytest.mark.slow
def test_the_gaussian_process_finds_the_peak() -> None:
    trials = search(20, OptunaConfig(sampler="gp", startup=6))
    assert max(value(t.values) for t in trials) > 5


def test_values_of_another_space_do_not_fit() -> None:
    inside = {"lr": 0.1, "budget": 8, "schedule": {"tau": 0.5}}
    assert fits(SPACE, inside)
    assert not fits(SPACE, {**inside, "lr": 2})
    assert not fits(SPACE, {**inside, "schedule": {"tau": 0.6}})
    assert not fits(SPACE, {**inside, "more": 1})
    assert not fits(SPACE, {"lr": 0.1, "budget": 8})
