"""A search on this machine: the launcher and its workers killed at random instants."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.search.trials import read_trials
from tests.sweep.search.driver import BRACKET, OPTUNA, drive
from tests.sweep.watching import workers_under

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start(file: Path, runs: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.search.run_fake", str(file), str(runs)]
        + ["launch.retries=50", "launch.parallel=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "FAKE_PAUSE": "0.3"},
    )


def maybe_tear(path: Path, dice: random.Random) -> None:
    """Sometimes the last line is cut short, as a machine that lost power might leave it."""
    if path.exists() and dice.random() < 0.5:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - dice.randrange(1, 30)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", [OPTUNA, BRACKET], ids=["optuna", "bracket"])
def test_no_proposal_is_lost_and_none_made_twice(text: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    file, runs = tmp_path / "s.yaml", tmp_path / "runs"
    file.write_text(text)
    sweep = SweepFolder(runs / ("b" if text == BRACKET else "o"))
    seen: dict[int, object] = {}
    for _ in range(6):
        launcher = start(file, runs)
        deadline = time.monotonic() + dice.uniform(0.5, 7)
        while time.monotonic() < deadline and launcher.poll() is None:
            time.sleep(dice.uniform(0.1, 1))
            victims = workers_under(sweep.path)
            if victims and dice.random() < 0.3:
                try:
                    os.kill(dice.choice(victims).pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        launcher.kill()
        launcher.communicate()
        if sweep.plan_path.exists():  # what a planned point stands for is never forgotten
            known = {t.number: t.values for t in read_trials(Ledger(sweep.ledger_path).read())}
            assert all(known.get(n) == values for n, values in seen.items())
            planned = {p.id for p in sweep.read_plan().points}
            trials = read_trials(Ledger(sweep.ledger_path).read())
            seen.update({t.number: t.values for t in trials if planned.issuperset(t.points)})
    launcher = start(file, runs)
    said, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    events = Ledger(sweep.ledger_path).read()
    trials = read_trials(events)
    assert [e["trial"] for e in events if e["event"] == "proposed"] == list(range(len(trials)))
    assert all(t.outcome is not None and t.outcome.good for t in trials)
    assert all(trials[n].values == values for n, values in seen.items())
    points = {i for t in trials for i in t.points}
    assert points <= {p.id for p in sweep.read_plan().points}
    assert all(sweep.point(i).read_result() is not None for i in points)
    if text == BRACKET:
        undisturbed = drive(file, tmp_path / "other")
        expected = read_json(undisturbed.sweep.path / "search.json")["brackets"][0]
        found = read_json(sweep.path / "search.json")["brackets"][0]
        assert (found["collapsed"], found["stable"]) == (expected["collapsed"], expected["stable"])
    else:
        assert len(trials) == 7


def test_torn_ledger_lines_cost_nothing_that_was_planned(tmp_path: Path) -> None:
    """The last line goes again and again; the search is made whole each time."""
    dice = random.Random(0)
    file, runs = tmp_path / "s.yaml", tmp_path / "runs"
    file.write_text(OPTUNA)
    for count in range(1, 8):
        search = drive(file, runs, None, f"sweep.optuna.trials={count}")
        maybe_tear(search.sweep.ledger_path, dice)
    search = drive(file, runs)
    assert len(search.trials) == 7
    assert all(t.outcome is not None and t.outcome.good for t in search.trials)
