"""Points become arrays: every point once, no index above the cap, dependencies that suffice."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.sweep.slurm.arrange import MOST_GROUPS, Element, Part, arrange
from sparrow_lab.sweep.slurm.todo import as_elements
from tests.sweep import fakes


def parts_of(
    taus: int, seeds: int, cap: int = 1001, throttle: int | None = None, canary: bool = True
) -> list[Part]:
    plan = fakes.make_plan(taus=[i / 100 for i in range(taus)], seeds=range(seeds))
    canaries = {"calibrate", "schedule", "train"} if canary else set()
    return arrange(as_elements(list(plan.points)), cap, throttle, canaries, {})


def covered(parts: list[Part]) -> list[str]:
    return [i for part in parts for element in part.elements for i in element.ids]


def waits_for(parts: list[Part], number: int) -> set[str]:
    """Ids of all points that have ended before a part begins, directly or through others."""
    part = parts[number]
    found: set[str] = set()
    for made in part.after:
        found |= set(parts[made.part].elements[made.index].ids) | waits_for(parts, made.part)
    for other in part.after_parts:
        assert other < number
        found |= set(covered([parts[other]])) | waits_for(parts, other)
    return found


@given(
    taus=st.integers(1, 12),
    seeds=st.integers(1, 5),
    cap=st.integers(1, 9),
    throttle=st.one_of(st.none(), st.integers(1, 6)),
    canary=st.booleans(),
)
def test_every_point_once_within_the_cap_after_what_it_needs(
    taus: int, seeds: int, cap: int, throttle: int | None, canary: bool
) -> None:
    parts = parts_of(taus, seeds, cap, throttle, canary)
    everything = covered(parts)
    assert len(everything) == len(set(everything)) == 1 + taus + 2 * taus * seeds
    for number, part in enumerate(parts):
        assert 1 <= len(part.elements) <= cap
        before = waits_for(parts, number)
        for element in part.elements:
            assert element.needs() <= before
        if part.canary is not None:
            assert part.canary in before and part.canary not in covered([part])


@given(taus=st.integers(1, 6), seeds=st.integers(1, 4), cap=st.integers(1, 7))
def test_a_throttle_makes_one_chain(taus: int, seeds: int, cap: int) -> None:
    """Slurm limits one array; in a chain only one array runs, so the limit is that of the sweep."""
    parts = parts_of(taus, seeds, cap, throttle=3)
    assert [p.after_parts for p in parts] == [[]] + [[i] for i in range(len(parts) - 1)]
    assert all(not p.after for p in parts)


def test_2500_points_against_a_cap_of_1000() -> None:
    points = [fakes.make_point(f"{i:08x}", "train", seed=i) for i in range(2500)]
    elements = as_elements(points)
    parts = arrange(elements, 1000, 40, {"train"}, {}, ["77"])
    assert [len(p.elements) for p in parts] == [1, 1000, 1000, 499]
    assert parts[0].after_jobs == ["77"]  # the throttle holds for what is in the queue already
    free = arrange(elements, 1000, None, set(), {})
    assert [len(p.elements) for p in free] == [1000, 1000, 500]
    assert all(not (p.after or p.after_parts or p.after_jobs) for p in free)


def test_a_slow_schedule_holds_only_what_is_built_on_it() -> None:
    parts = parts_of(taus=3, seeds=2, canary=False)
    trains = [p for p in parts if p.stage == "train"]
    assert len(trains) == 3
    for part in trains:
        (need,) = {n for e in part.elements for n in e.needs()}
        made = [parts[m.part].elements[m.index].ids for m in part.after]
        made += [covered([parts[i]]) for i in part.after_parts]  # type: ignore[misc]
        assert need in itertools.chain.from_iterable(made)
    # the three schedules share one array, and each group of runs waits for one element of it
    assert [p.after[0].index for p in trains] == [0, 1, 2]


def test_very_many_groups_share_arrays_that_wait_for_all() -> None:
    parts = parts_of(taus=MOST_GROUPS + 5, seeds=1, canary=False)
    assert [p.stage for p in parts] == ["calibrate", "schedule", "train"]
    assert parts[2].after_parts == [1] and parts[2].after == []


def test_needs_that_are_in_the_queue_already_are_waited_for_by_name() -> None:
    plan = fakes.make_plan(taus=[0.8])
    trains = [p for p in plan.points if p.stage in ("train", "evaluate")]
    (part,) = arrange(as_elements(trains), 100, None, set(), {"5c000000": "120_3"})
    assert part.after_jobs == ["120_3"]
    assert [e.ids for e in part.elements] == [("7a000000", "e0000000")]


def test_an_evaluation_alone_is_an_element_of_its_own() -> None:
    plan = fakes.make_plan(taus=[0.8])
    (element,) = as_elements([plan.points[-1]])
    assert element == Element((plan.points[-1],)) and element.needs() == {"7a000000"}
