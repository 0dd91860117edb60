"""Which points start next: decided from states and needs alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.states import STATES, PointState, State, held_by_needs
from tests.sweep import fakes

PLAN = fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1])


def states_of(**given_states: State) -> dict[str, State]:
    every: dict[str, State] = {p.id: "planned" for p in PLAN.points}
    return every | {("c0000000" if i == "c" else f"5c00000{i[1:]}"): s
                    for i, s in given_states.items()}  # fmt: skip


def ids(points: list[PlannedPoint]) -> list[str]:
    return [p.id for p in points]


def test_only_what_has_all_it_needs_is_ready() -> None:
    assert ids(queue.ready(PLAN.points, states_of())) == ["c0000000"]
    assert ids(queue.ready(PLAN.points, states_of(c="running"))) == []
    assert ids(queue.ready(PLAN.points, states_of(c="done"))) == ["5c000000", "5c000001"]
    after_one = states_of(c="done", s0="done")
    assert ids(queue.ready(PLAN.points, after_one)) == ["5c000001", "7a000000", "7a000001"]
    assert "7a000000" not in ids(queue.ready(PLAN.points, states_of(c="done", s0="failed")))


def test_an_evaluation_goes_along_with_its_training_only() -> None:
    states = states_of()
    train = PLAN.point("7a000000")
    assert ids(queue.with_followers(train, PLAN.points, states)) == ["7a000000", "e0000000"]
    states["e0000000"] = "cancelled"
    assert ids(queue.with_followers(train, PLAN.points, states)) == ["7a000000"]
    schedule = PLAN.point("5c000000")
    assert ids(queue.with_followers(schedule, PLAN.points, states)) == ["5c000000"]


def test_the_first_points_bring_what_they_need() -> None:
    assert queue.first_points(PLAN.points, 1) == {"c0000000", "5c000000", "7a000000", "e0000000"}
    assert queue.first_points(PLAN.points, 99) == {p.id for p in PLAN.points}
    curves = tuple(p for p in PLAN.points if p.stage in ("calibrate", "schedule"))
    assert queue.first_points(curves, 1) == {"c0000000", "5c000000"}
    assert queue.first_points((), 3) == set()


def test_dependants_follow() -> None:
    assert queue.with_dependants(PLAN.points, {"7a000000"}) == {"7a000000", "e0000000"}
    assert queue.with_dependants(PLAN.points, {"c0000000"}) == {p.id for p in PLAN.points}


@given(st.data())
def test_running_what_is_ready_finishes_every_plan(data: st.DataObject) -> None:
    """Whatever order the ends come in and whatever fails, all is done, failed or held."""
    states: dict[str, State] = {p.id: "planned" for p in PLAN.points}
    while True:
        waiting = queue.ready(PLAN.points, states)
        if not waiting:
            break
        point = data.draw(st.sampled_from(waiting))
        assert all(states[n] == "done" for n in point.needs.values())
        states[point.id] = data.draw(st.sampled_from(["done", "done", "failed", "cancelled"]))
    marked = held_by_needs(PointState(p, states[p.id]) for p in PLAN.points)
    assert {s.state for s in marked.values()} <= {"done", "failed", "cancelled", "held"}
    for state in marked.values():
        blocked = queue.blocked_by(state.point, {i: s.state for i, s in marked.items()})
        assert (state.state == "held") == (blocked is not None)


@given(st.dictionaries(st.sampled_from([p.id for p in PLAN.points]), st.sampled_from(STATES)))
def test_nothing_that_is_not_waiting_is_ever_ready(given_states: dict[str, State]) -> None:
    states: dict[str, State] = {**{p.id: "planned" for p in PLAN.points}, **given_states}
    for point in queue.ready(PLAN.points, states):
        assert states[point.id] in ("planned", "interrupted")
