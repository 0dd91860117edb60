"""The preview: what would run, what is there already, and a time that says what it assumes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_lab.config.load import load_sweep
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep import checks
from sparrow_lab.sweep.estimate import Estimator, model_shape
from sparrow_lab.sweep.plan import make_plan
from sparrow_lab.sweep.preview import duration, render

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def search() -> Plan:
    return make_plan(load_sweep(EXPERIMENTS / "threshold_search.yaml"), EXPERIMENTS)


def text(*args: object, **kwargs: object) -> str:
    """Render to plain text, wide enough for one line a row."""
    out = StringIO()
    Console(file=out, width=160).print(render(*args, **kwargs))  # type: ignore[arg-type]
    return out.getvalue()


def rows(shown: str) -> dict[str, list[str]]:
    """Return the words of each line by its first word."""
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.split()}


def test_counts_by_stage_and_what_is_done(search: Plan) -> None:
    done = {p.id: "done" for p in search.points if p.stage == "calibrate"}
    lines = rows(text(search, done))
    assert lines["threshold_search:"] == ["94", "points"]
    shown = text(search, done)
    assert "calibrate       4     4       0" in shown
    assert "all            94     4      90" in shown


def test_every_point_has_its_id_label_and_state(search: Plan) -> None:
    failed = next(p for p in search.points if p.stage == "train" and p.label["tau"] == 0.86)
    lines = rows(text(search, {failed.id: "failed"}, rows=0))
    assert all(point.id in lines for point in search.points)
    assert lines[failed.id] == ["tiny-s", "4", "0.86", "0", "failed"]
    others = [p for p in search.points if p is not failed]
    assert all(lines[p.id][-1] == "new" for p in others)


def test_long_stages_are_cut_and_say_so(search: Plan) -> None:
    shown = text(search, rows=5)
    assert "... and 31 more" in shown
    assert shown.count("... and") == 3


def test_the_estimate_names_its_assumptions(search: Plan) -> None:
    shown = " ".join(text(search).split())
    assert "one worker on cpu-2-core" in shown
    assert "taken as dense" in shown
    everything = {p.id: "done" for p in search.points}
    assert "Everything is done." in text(search, everything)


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans need to know that the package is there, and nothing of it."""
    monkeypatch.setattr(checks, "find_spec", lambda name: object())


@pytest.mark.usefixtures("gym")
def test_sparser_training_is_estimated_to_be_no_slower() -> None:
    def seconds(schedule: object) -> float:
        base = {
            "model": {"name": "Qwen/Qwen3-1.7B"},
            "task": {"name": "reasoning_gym", "dataset": "x", "max_new_tokens": 16000},
            "sparsity": {"schedule": schedule},
        }
        config = SweepConfig.model_validate({"name": "a", "base": base})
        made = make_plan(config, EXPERIMENTS)
        point = next(p for p in made.points if p.stage == "train")
        found = Estimator("h200").seconds(point)
        assert found is not None
        return found

    assert 0 < seconds({"budget": 1024}) < seconds("dense")


@pytest.mark.usefixtures("gym")
def test_a_model_of_unknown_shape_has_no_estimate() -> None:
    base = {"model": {"name": "org/unheard-of"}, "task": {"name": "reasoning_gym", "dataset": "x"}}
    made = make_plan(SweepConfig.model_validate({"name": "a", "base": base}), EXPERIMENTS)
    shown = text(made)
    assert "No estimate" in shown
    assert "?" in shown


def test_shapes() -> None:
    tiny, known = model_shape("tiny-s"), model_shape("Qwen/Qwen3-8B")
    assert tiny is not None and tiny.parameters == 115_680
    assert known is not None and known.layers == 36
    assert model_shape("org/unheard-of") is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "< 1 s"),
        (59.6, "60 s"),
        (119, "119 s"),
        (150, "2.5 min"),
        (4000, "67 min"),
        (9000, "2.5 h"),
        (1e6, "12 d"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
