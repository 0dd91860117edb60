"""Narrowing a bracket: few runs, the right place, and the truth about what does not fit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from sparrow_lab.config.methods import BracketConfig
from sparrow_lab.config.space import Range
from sparrow_lab.sweep.search.bracket import KeyOf, Narrowed, narrow
from sparrow_lab.sweep.search.levels import Level, Quorum
from sparrow_lab.sweep.search.scale import Scale
from sparrow_lab.sweep.search.trials import Outcome

Truth = Callable[[float, int], str]


class Search:
    """Narrows to the end, answering each question by `truth(value, seed)`."""

    def __init__(
        self,
        truth: Truth,
        *,
        key: KeyOf = lambda value: None,
        known: dict[float, Level] | None = None,
        at_once: int = 1,
        whole: bool = False,
        **settings: object,
    ) -> None:
        given = {"field": "x", "low": 0.05, "high": 0.97, "width": 0.02, **settings}
        config = BracketConfig.model_validate(given)
        field = Range("x", config.low, config.high, whole, config.scale == "log")
        self.scale, self.quorum = Scale.of(field, config), Quorum.of(config.seeds, config.share)
        self.levels = dict(known or {})
        self.runs = self.rounds = 0
        while True:
            self.end: Narrowed = narrow(self.scale, self.quorum, self.levels, key, at_once)
            if self.end.finished:
                break
            self.rounds += 1
            assert self.end.asks and self.rounds < 100
            for ask in self.end.asks:
                level = self.levels.setdefault(ask.value, Level(ask.value, begun=True))
                assert ask.seed not in level.runs, "asked twice"
                level.runs[ask.seed] = Outcome(truth(ask.value, ask.seed))  # type: ignore[arg-type]
                self.runs += 1


def at(threshold: float, collapses: str = "below") -> Truth:
    return lambda v, _: "collapsed" if (v < threshold) == (collapses == "below") else "stable"


@pytest.mark.parametrize("threshold", [0.051, 0.2, 0.4321, 0.86, 0.969])
def test_it_finds_the_threshold_with_two_runs_a_level(threshold: float) -> None:
    done = Search(at(threshold))
    assert done.end.finished == "as narrow as was asked for"
    assert done.end.collapsed < threshold <= done.end.stable
    assert done.end.stable - done.end.collapsed <= 0.02 + 1e-9
    assert done.runs == 2 * len(done.levels)  # the third seed can change nothing
    assert len(done.levels) <= 2 + math.ceil(math.log2(0.92 / 0.02)) + 1


def test_whole_numbers_end_as_neighbours() -> None:
    done = Search(at(37.5), low=1, high=100, width=1, whole=True)
    assert (done.end.collapsed, done.end.stable) == (37, 38)
    assert all(isinstance(v, int) for v in done.levels)
    coarse = Search(at(2.5), low=1, high=4, width=0.5, whole=True)
    assert (coarse.end.collapsed, coarse.end.stable) == (2, 3)
    assert coarse.end.finished == "no other run lies between them"


def test_a_learning_rate_collapses_above_and_is_split_in_its_logarithm() -> None:
    done = Search(at(3e-4, "above"), low=1e-5, high=1e-2, width=0.1, scale="log", collapses="above")
    assert done.end.stable < 3e-4 <= done.end.collapsed
    assert done.end.collapsed / done.end.stable <= 1.1 + 1e-6
    assert len(done.levels) <= 2 + math.ceil(math.log2(math.log(1000) / math.log(1.1))) + 1


def steps(value: float) -> str:
    """Ten schedules over the whole range."""
    return str(math.floor(value * 10 + 1e-9))


def test_values_of_one_schedule_are_one_run() -> None:
    done = Search(at(0.4), key=steps)
    assert done.end.finished == "no other run lies between them"
    assert done.end.collapsed < 0.4 <= done.end.stable and done.end.stable - 0.4 < 0.02
    assert len({steps(v) for v in done.levels}) == len(done.levels)
    assert done.runs <= 2 * (2 + math.ceil(math.log2(10)))
    finer = Search(at(0.4), key=steps, width=0.0001)
    assert finer.runs == done.runs  # the edge between two schedules is found without training
    assert finer.end.stable - finer.end.collapsed <= 0.0001 + 1e-9


def test_several_levels_at_once_need_fewer_rounds() -> None:
    one, three = (Search(at(0.4321), at_once=n) for n in (1, 3))
    assert three.rounds < one.rounds
    assert three.end.collapsed < 0.4321 <= three.end.stable


def test_seeds_that_disagree_bring_in_the_third() -> None:
    def truth(value: float, seed: int) -> str:
        odd = seed == 1
        return "collapsed" if (value < 0.5) != odd else "stable"

    done = Search(truth)
    assert done.end.collapsed < 0.5 <= done.end.stable
    assert all(len(level.runs) == 3 for level in done.levels.values())


@pytest.mark.parametrize(
    ("share", "seeds", "collapsed", "stable"),
    [
        (0.5, 1, 1, 1),
        (0.5, 2, 1, 2),
        (0.5, 3, 2, 2),
        (1.0, 3, 3, 1),
        (0.1, 5, 1, 5),
        (0.5, 5, 3, 3),
    ],
)
def test_quorum(share: float, seeds: int, collapsed: int, stable: int) -> None:
    quorum = Quorum.of(range(seeds), share)
    assert (quorum.collapsed, quorum.stable) == (collapsed, stable)


def test_ends_that_do_not_behave_are_told() -> None:
    stable = Search(lambda v, s: "stable")
    assert stable.end.finished == "no level collapses, not even 0.05: 0 of 2 collapsed"
    assert not stable.end.found and stable.runs == 4
    falls = Search(lambda v, s: "collapsed")
    assert falls.end.finished == "no level is stable, not even 0.97: 2 of 2 collapsed"
    silent = Search(lambda v, s: "censored" if v > 0.9 else "collapsed")
    assert (
        silent.end.finished == "the end at 0.97 is undecided: 0 of 0 collapsed, 2 without a verdict"
    )


def test_a_censored_run_is_not_taken_for_a_stable_one() -> None:
    def truth(value: float, seed: int) -> str:
        return "censored" if seed == 0 else at(0.4321)(value, seed)

    done = Search(truth)
    assert done.end.collapsed < 0.4321 <= done.end.stable
    assert all(level.count("censored") == 1 for level in done.levels.values())
    assert all(len(level.runs) == 3 for level in done.levels.values())


def test_levels_without_a_verdict_are_passed_by_and_then_given_up() -> None:
    few = Search(lambda v, s: "unknown" if 0.50 < v < 0.52 else at(0.3)(v, s))
    assert few.end.collapsed < 0.3 <= few.end.stable
    many = Search(lambda v, s: "censored" if 0.3 < v < 0.7 else at(0.5)(v, s))
    assert many.end.finished == "no other run is left: 3 levels between have no verdict"
    assert many.end.found and many.end.stable - many.end.collapsed > 0.3
    assert many.runs < 20


def test_stagnated_runs_count_as_not_collapsed() -> None:
    done = Search(lambda v, s: "collapsed" if v < 0.5 else "stagnated")
    assert done.end.collapsed < 0.5 <= done.end.stable
    assert done.end.levels[-1].text() == "0 of 2 collapsed, 2 stagnated"  # but they are told


def runs(kind: str, *seeds: int) -> dict[int, Outcome | None]:
    return {seed: Outcome(kind) for seed in seeds}  # type: ignore[arg-type]


def test_finished_levels_are_used_before_anything_is_run() -> None:
    known = {
        0.3: Level(0.3, runs("collapsed", 0, 1)),
        0.5: Level(0.5, runs("stable", 0, 1)),
        0.6: Level(0.6, runs("stable", 2)),
    }
    done = Search(at(0.4321), known=known)
    assert 0.05 not in done.levels and 0.97 not in done.levels
    assert done.runs <= 2 * math.ceil(math.log2(0.2 / 0.02) + 1)


def test_a_level_with_one_finished_run_needs_one_more() -> None:
    known = {
        0.3: Level(0.3, runs("collapsed", 0, 1)),
        0.5: Level(0.5, runs("stable", 0, 1)),
        0.41: Level(0.41, runs("collapsed", 0)),
    }
    first = narrow(
        Scale.of(Range("x", 0.05, 0.97), BracketConfig(field="x", low=0.05, high=0.97, width=0.02)),
        Quorum.of((0, 1, 2), 0.5),
        known,
        lambda value: None,
    )
    assert [(ask.value, ask.seed) for ask in first.asks] == [(0.41, 1)]


def test_a_stable_level_below_a_collapsed_one_is_shown() -> None:
    known = {0.2: Level(0.2, runs("stable", 0, 1)), 0.4: Level(0.4, runs("collapsed", 0, 1))}
    done = Search(at(0.4321), known=known)
    assert done.end.collapsed >= 0.4 and done.end.stable >= 0.4321
    assert [level.value for level in done.end.against] == [0.2]


def test_nothing_is_asked_while_enough_is_under_way() -> None:
    scale = Scale.of(
        Range("x", 0.05, 0.97), BracketConfig(field="x", low=0.05, high=0.97, width=0.02)
    )
    quorum = Quorum.of((0, 1, 2), 0.5)
    under_way = {
        0.05: Level(0.05, {0: None, 1: None}, begun=True),
        0.97: Level(0.97, {0: Outcome("stable"), 1: None}, begun=True),
    }
    found = narrow(scale, quorum, under_way, lambda value: None)
    assert not found.asks and not found.finished


@pytest.mark.parametrize("seed", range(40))
def test_any_noise_ends_and_never_lies(seed: int) -> None:
    """Verdicts at random: the search ends, and its ends are levels with those verdicts."""
    dice = random.Random(seed)
    kinds = ["collapsed", "stable", "stagnated", "censored", "unknown", "failed"]
    weights = [dice.random() for _ in kinds]
    key: KeyOf = dice.choice([steps, lambda value: None])
    answers: dict[tuple[float, int], str] = {}

    def truth(value: float, number: int) -> str:
        return answers.setdefault((value, number), dice.choices(kinds, weights)[0])

    done = Search(truth, key=key, at_once=dice.choice([1, 2, 3]), share=dice.choice([0.3, 0.5, 1]))
    verdicts = {level.verdict(done.quorum) for level in done.end.levels}
    if done.end.found:
        assert {"collapsed", "stable"} <= verdicts
        assert done.end.collapsed < done.end.stable
    assert done.runs <= 3 * len(done.levels)
