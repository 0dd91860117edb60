"""The controller: proposals before points, nothing lost and nothing twice, whatever dies when."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sparrow_lab.runs.atomic import read_json
from sparrow_lab.sweep.search.controller import Controller, stop_search
from sparrow_lab.sweep.search.trials import Outcome, Trial, read_trials
from sparrow_lab.sweep.states import read_states
from tests.sweep.search.driver import (
    BRACKET,
    OPTUNA,
    Crash,
    Writes,
    drive,
    open_controller,
    run_ready,
    told,
)
from tests.sweep.search.stages import reward, starts

TEXTS = {"bracket": BRACKET, "optuna": OPTUNA}


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(getattr(request, "param", OPTUNA))
    return path


def by_trial(search: Controller) -> list[tuple[dict[str, object], Outcome | None]]:
    return [(t.values, t.outcome) for t in search.trials]


def assert_sound(search: Controller) -> None:
    """Every trial is in the ledger once and told, every point ran once and is in the plan."""
    assert all(t.outcome is not None and t.outcome.good for t in search.trials)
    proposed = [e["trial"] for e in told(search.sweep) if e["event"] == "proposed"]
    assert proposed == list(range(len(search.trials)))
    plan = search.sweep.read_plan()
    assert {i for t in search.trials for i in t.points} <= {p.id for p in plan.points}
    for point in plan.points:
        folder = search.sweep.point(point.id)
        result = folder.read_result()
        assert result is not None
        assert starts(folder.path) == (0 if result["alias_of"] else 1)


@pytest.mark.parametrize("file", [BRACKET], indirect=True)
def test_a_bracket_finds_the_switch_between_two_schedules(file: Path, tmp_path: Path) -> None:
    search = drive(file, tmp_path / "runs")
    assert_sound(search)
    found = read_json(search.sweep.path / "search.json")["brackets"][0]
    # the threshold lies between budgets 56 and 64, and 0.56 is the last tau that asks for 56
    assert found["collapsed"] <= 0.56 < found["stable"]
    assert found["stable"] - found["collapsed"] <= 0.02 + 1e-9
    assert found["finished"] == "no other run lies between them"
    assert found["runs"] == 10 == 2 * len(found["levels"])
    first = "tau: 0.556 collapses (p5 0.560, 2 of 2 collapsed), 0.566 is stable (p5 0.640, 0 of 2"
    assert search.lines()[0].startswith(first)
    assert {level["p05"] for level in found["levels"]} >= {0.56, 0.64}


def test_optuna_proposes_and_is_told(file: Path, tmp_path: Path) -> None:
    search = drive(file, tmp_path / "runs")
    assert_sound(search)
    assert len(search.trials) == 7 and search.finished == "all 7 trials have ended"
    for trial in search.trials:
        rates = [reward(trial.values["train.lr"], seed) for seed in (0, 1)]
        assert trial.outcome is not None
        assert trial.outcome.value == pytest.approx(sum(rates) / 2)
    best = max(t.outcome.value or 0 for t in search.trials if t.outcome)
    assert f"best: evaluate/reward {best:.4g} with lr=" in "\n".join(search.lines())


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True], ids=["between writes", "in a write"])
@pytest.mark.parametrize("file", list(TEXTS.values()), ids=list(TEXTS), indirect=True)
def test_a_crash_after_any_write_changes_nothing(file: Path, tmp_path: Path, torn: bool) -> None:
    writes = Writes()
    expected = by_trial(drive(file, tmp_path / "undisturbed", writes))
    for last in range(1, writes.count + 1):
        runs = tmp_path / str(last)
        with pytest.raises(Crash):
            drive(file, runs, Writes(last, torn))
        search = drive(file, runs)
        assert by_trial(search) == expected, f"after write {last}"
        assert_sound(search)


@pytest.mark.parametrize("file", list(TEXTS.values()), ids=list(TEXTS), indirect=True)
def test_a_crash_in_every_run_still_ends(file: Path, tmp_path: Path) -> None:
    expected = by_trial(drive(file, tmp_path / "undisturbed"))
    for _ in range(200):
        try:
            search = drive(file, tmp_path / "runs", Writes(3))
            break
        except Crash:
            continue
    else:
        pytest.fail("never came to an end")
    assert by_trial(search) == expected
    assert_sound(search)


def test_a_proposal_is_in_the_ledger_before_its_points_are_planned(
    file: Path, tmp_path: Path
) -> None:
    search = open_controller(file, tmp_path / "runs", Writes(1))
    search.sweep.path.mkdir(parents=True)
    with pytest.raises(Crash):
        search.grow({})
    assert [e["event"] for e in told(search.sweep)] == ["proposed", "proposed"]
    assert not search.sweep.plan_path.exists()


def test_more_trials_go_on_from_the_earlier(file: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    few = by_trial(drive(file, runs, None, "sweep.optuna.trials=4"))
    more = by_trial(drive(file, runs))
    assert more[:4] == few and len(more) == 7


def test_a_failed_trial_is_told_and_its_late_result_is_taken(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "evaluate")
    search = drive(file, tmp_path / "runs")
    kinds = Counter(t.outcome.kind for t in search.trials if t.outcome)
    assert kinds == {"failed": 4}  # two at once, then two more; then it is hopeless
    assert "the first 4 trials have no value" in search.finished
    assert "ValueError: out of order" in search.finished
    monkeypatch.delenv("FAKE_FAIL")
    for state in read_states(search.sweep).values():
        if state.state == "failed":
            search._ledger.append("retry", point=state.point.id, after=9)
    late = drive(file, tmp_path / "runs")
    assert [t.outcome.kind for t in late.trials if t.outcome] == ["done"] * 7
    assert by_trial(late)[:2] == by_trial(drive(file, tmp_path / "undisturbed"))[:2]


@pytest.mark.parametrize("file", list(TEXTS.values()), ids=list(TEXTS), indirect=True)
def test_a_cancelled_search_is_taken_up_again(file: Path, tmp_path: Path) -> None:
    """Trials that were cancelled under way are under way again, and nothing else is changed."""
    expected = by_trial(drive(file, tmp_path / "undisturbed"))
    search = drive(file, tmp_path / "runs", turns=1)  # one round: some points wait
    sweep = search.sweep
    waiting = [i for i, s in read_states(sweep).items() if s.state == "planned"]
    assert waiting and stop_search(sweep)
    search._ledger.append_all([{"event": "cancelled", "point": i} for i in waiting])
    search.grow(read_states(sweep))
    assert "was cancelled" in search.finished
    assert {t.outcome.kind for t in search.trials if t.outcome} == {"failed"}
    again = drive(file, tmp_path / "runs")
    assert by_trial(again) == expected and again.taken_up == len(waiting)
    assert_sound(again)
    assert drive(file, tmp_path / "runs").taken_up is None


def test_points_that_were_cancelled_before_the_search_stay_cancelled(
    file: Path, tmp_path: Path
) -> None:
    search = drive(file, tmp_path / "runs", turns=1)
    sweep = search.sweep
    by_hand, *waiting = [i for i, s in read_states(sweep).items() if s.state == "planned"]
    search._ledger.append("cancelled", point=by_hand)
    assert waiting and stop_search(sweep)
    search._ledger.append_all([{"event": "cancelled", "point": i} for i in waiting])
    again = open_controller(file, tmp_path / "runs", Writes())
    again.begin()
    assert again.taken_up == len(waiting)
    states = read_states(sweep)
    assert states[by_hand].state == "cancelled"
    assert "cancelled" not in {states[i].state for i in waiting}


def test_a_metric_that_is_not_there_is_named(file: Path, tmp_path: Path) -> None:
    search = drive(file, tmp_path / "runs", None, "sweep.optuna.metric=evaluate/rewart")
    assert "has no metric 'evaluate/rewart'; it has evaluate/reward" in search.finished


def test_a_proposal_that_cannot_run_is_passed_over(file: Path, tmp_path: Path) -> None:
    """Budgets of the space's lower half do not hold the reserved pages; they cost no trial."""
    space = "sweep.space.sparsity.schedule.budget={low: 24, high: 96, step: 8}"
    search = drive(file, tmp_path / "runs", None, space)
    refused = [t for t in search.trials if t.refused]
    assert refused and all("reserved" in t.outcome.reason for t in refused if t.outcome)
    assert all(not t.points for t in refused)
    assert len(search.trials) - len(refused) == 7
    assert f"{len(refused)} proposals cannot run and were passed over" in "\n".join(search.lines())


def test_a_space_in_which_hardly_anything_can_run_comes_to_an_end(
    file: Path, tmp_path: Path
) -> None:
    space = "sweep.space.sparsity.schedule.budget={low: 8, high: 32, step: 8}"
    search = drive(file, tmp_path / "runs", None, space)
    assert all(t.refused for t in search.trials)
    assert "30 proposals in a row cannot run: sparsity.schedule.budget: found" in search.finished
    again = drive(file, tmp_path / "runs", None, space)
    assert (again.finished, len(again.trials)) == (search.finished, len(search.trials))


@pytest.mark.parametrize("file", [BRACKET], indirect=True)
def test_finished_runs_of_a_grid_are_used(file: Path, tmp_path: Path) -> None:
    """The same folder first had a grid; its levels are the bracket's first ones, for nothing."""
    runs = tmp_path / "runs"
    grid = tmp_path / "grid.yaml"
    text = BRACKET[: BRACKET.index("sweep:")]
    axes = "{sparsity.schedule.tau: [0.4, 0.7], seed: [0, 1]}"
    grid.write_text(f"{text}sweep:\n  axes: {axes}\n")
    from sparrow_lab.config.load import load_sweep
    from sparrow_lab.sweep.plan import make_plan

    search = open_controller(file, runs, Writes())
    search.sweep.write_plan(make_plan(load_sweep(grid), tmp_path))
    while run_ready(search.sweep, search.sweep.read_plan()):
        pass
    search = drive(file, runs)
    assert_sound(search)
    found = read_json(search.sweep.path / "search.json")["brackets"][0]
    assert found["reused"] == 4 and found["runs"] <= 6
    assert found["collapsed"] <= 0.56 < found["stable"]
    assert {0.25, 0.95}.isdisjoint(t.values["sparsity.schedule.tau"] for t in search.trials)


@pytest.mark.parametrize("file", [BRACKET], indirect=True)
def test_runs_that_break_off_are_censored(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CENSOR", "50-70")
    search = drive(file, tmp_path / "runs")
    found = read_json(search.sweep.path / "search.json")["brackets"][0]
    assert found["collapsed"] < 0.5 and found["stable"] > 0.64
    assert "have no verdict" in found["finished"]
    silent = [t.outcome for t in search.trials if t.outcome and t.outcome.kind == "censored"]
    assert silent and "no more memory" in silent[0].reason


@pytest.mark.parametrize("file", [BRACKET], indirect=True)
def test_every_combination_of_the_axes_has_its_bracket(file: Path, tmp_path: Path) -> None:
    axes = "sweep.axes={sparsity.page_size: [4, 8], model.name: [tiny-s, tiny-m]}"
    search = drive(file, tmp_path / "runs", None, axes, "sweep.bracket.width=0.2")
    groups = read_json(search.sweep.path / "search.json")["brackets"]
    assert len(groups) == 4
    assert all(group["collapsed"] <= 0.56 < group["stable"] for group in groups)
    assert search.lines()[0].startswith("page_size=4 model=tiny-s: tau: ")


def test_trials_outside_the_present_space_stay_but_do_not_count(file: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    drive(file, runs, None, "sweep.optuna.trials=4")
    narrower = "sweep.space.train.lr={low: 1e-3, high: 1e-1, log: true}"
    search = drive(file, runs, None, "sweep.optuna.trials=4", narrower)
    outside = [t for t in search.trials if t.values["train.lr"] < 1e-3]
    assert outside and len(search.trials) == 4 + len(outside)
    assert f"{len(outside)} earlier trials lie outside the present space" in search.lines()[1]
    planned = {p.id for p in search.sweep.read_plan().points}
    assert {i for t in search.trials for i in t.points} <= planned


def test_a_ledger_without_its_plan_is_enough(file: Path, tmp_path: Path) -> None:
    search = drive(file, tmp_path / "runs")
    search.sweep.plan_path.unlink()
    (search.sweep.path / "search.json").unlink()
    again = drive(file, tmp_path / "runs")
    assert by_trial(again) == by_trial(search)
    assert [t for t in read_trials(again._ledger.read()) if isinstance(t, Trial)] == again.trials
