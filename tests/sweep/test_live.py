"""What the launcher's user sees: plain lines, the live table, the end; and time left."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from sparrow_lab.runs.events import EventWriter
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.runs.process import this_process
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.live import LiveView, PlainView, make_view
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.progress import Progress, progress_of, spell_time, time_left
from sparrow_lab.sweep.select import short_names
from sparrow_lab.sweep.states import PointState, read_states
from sparrow_lab.sweep.summary import closing_lines, exit_code
from tests.sweep import fakes

MakeSweep = Callable[[Plan], SweepFolder]


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=110, force_terminal=terminal, no_color=True), out


def with_states(plan: Plan, **states: str) -> dict[str, PointState]:
    return {
        p.id: PointState(p, states.get(p.id, "planned"), "why" if p.id in states else "")  # type: ignore[arg-type]
        for p in plan.points
    }


def test_the_view_fits_the_console() -> None:
    assert isinstance(make_view(console(True)[0]), LiveView)
    assert isinstance(make_view(console(False)[0]), PlainView)


def test_plain_lines_are_one_an_event_and_whole() -> None:
    screen, out = console(False)
    view = PlainView(screen)
    point = fakes.make_point("7a00", "train", label={"tau": 0.86, "task": "[bold]x" * 20})
    view.note("started", [point])
    view.note("failed", [point], "ValueError: [red]no")
    view.stopping(False, 2, 30)
    view.stopping(False, 1, 30)
    view.stopping(True, 1, 30)
    view.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 and "\x1b" not in out.getvalue()
    assert lines[0].endswith(f"started: train {point.short()} (7a00)")
    assert lines[1].endswith("(7a00): ValueError: [red]no")
    assert lines[2:] == [
        "stopping: workers may take 30 s to save; Ctrl-C again to stop at once",
        "stopping at once",
    ]


def test_the_live_table_shows_stages_progress_and_failures(make_sweep: MakeSweep) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9])
    sweep = make_sweep(plan)
    attempt = sweep.point("7a000000").new_attempt({**this_process(), "token": "t0"})
    with EventWriter(attempt) as events:
        events.write(1, {"acceptance/p05": 0.871, "evaluate/reward": 0.25})
    attempt.path.joinpath("progress.json").write_text(
        f'{{"done": 21, "total": 41, "note": "hello", "time": {time.time() + 40}}}'
    )
    states = with_states(
        plan, c0000000="done", **{"5c000000": "done", "7a000000": "running", "7a001000": "failed"}
    )
    screen, out = console(True)
    view = LiveView(screen)
    job = Job(sweep, "t0", ["7a000000", "e0000000"])
    view.update(sweep, states, [job], Options())
    view.update(sweep, states, [job], Options())  # too soon: not drawn
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert text.count("fake: 2 of 7 points done, 1 running") == 1
    for words in ("21/41", "0.871", "0.250", "40 s", "hello", "tau=0.8", "1 held", "1 failed"):
        assert words in text
    assert "failed      train     tau=0.9 (7a001000): why" in text
    view.close()


def test_labels_leave_out_what_all_share() -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9])
    names = short_names(plan.points)
    assert names["7a000000"] == "tau=0.8" and names["c0000000"] == "model=tiny-s"
    assert (
        short_names(fakes.make_plan(taus=[0.8]).points)["7a000000"] == "model=tiny-s,tau=0.8,seed=0"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0 s"), (89, "89 s"), (91, "2 min"), (5400, "1 h 30 min"),
     (7200, "2 h"), (200_000, "2 d 8 h"), (2 * 86_400, "2 d")],
)  # fmt: skip
def test_times_are_spelled(seconds: float | None, text: str) -> None:
    assert spell_time(seconds) == text


def test_time_left_is_from_means_and_paces(make_sweep: MakeSweep) -> None:
    points = tuple(fakes.make_point(f"7a{i:02d}", "train") for i in range(4))
    states = {
        p.id: PointState(p, s, result=r)  # type: ignore[arg-type]
        for p, s, r in zip(
            points,
            ["done", "running", "planned", "planned"],
            [{"seconds": 100.0}, None, None, None],
            strict=True,
        )
    }
    running = {"7a01": Progress(done=5, total=10, elapsed=50, left=50.0)}
    assert time_left(states.values(), running, 2) == pytest.approx((50 + 100 + 100) / 2)
    unknown = {i: s for i, s in states.items() if s.state == "planned"}
    assert time_left(unknown.values(), {}, 2) is None
    assert time_left([states["7a00"]], {}, 2) == 0
    sweep = make_sweep(Plan("fake", {}, points))
    assert progress_of(None) == Progress()
    assert progress_of(sweep.point("7a00").new_attempt({**this_process()})).left is None


def test_the_end_says_what_happened_and_what_next() -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9])
    done = {i: PointState(s.point, "done", result={}) for i, s in with_states(plan).items()}
    assert closing_lines("fake", done) == ["fake: all 7 points are done"]
    assert exit_code(done) == 0
    mixed: dict[str, Any] = {**done}
    mixed["7a000000"] = PointState(plan.point("7a000000"), "failed", "ValueError: x")
    mixed["e0000000"] = PointState(plan.point("e0000000"), "held", "its train failed")
    mixed["7a001000"] = PointState(plan.point("7a001000"), "lost", "vanished")
    text = "\n".join(closing_lines("fake", mixed))
    for words in (
        "4 done, 1 held, 1 lost, 1 failed",
        "(7a000000): ValueError: x",
        "held: 1 because its train failed",
        "retry fake --failed",
        "lost points",
    ):
        assert words in text
    assert exit_code(mixed) == 1


def test_exit_codes_of_stops_and_cancellations() -> None:
    plan = fakes.make_plan(taus=[0.8])
    done = {i: PointState(s.point, "done", result={}) for i, s in with_states(plan).items()}
    left = {**done, "7a000000": PointState(plan.point("7a000000"), "interrupted")}
    assert exit_code(left, stopped=130) == 130
    assert exit_code(done, stopped=130) == 0
    cancelled = {
        **done,
        "7a000000": PointState(plan.point("7a000000"), "cancelled"),
        "e0000000": PointState(plan.point("e0000000"), "held"),
    }
    assert exit_code(cancelled) == 0
    assert exit_code({**cancelled, "c0000000": PointState(plan.points[0], "failed")}) == 1


def test_a_states_table_of_an_empty_folder(make_sweep: MakeSweep) -> None:
    assert read_states(make_sweep(Plan("fake", {}, ()))) == {}
