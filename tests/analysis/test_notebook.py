"""The notebook runs on a sweep from beginning to end, and is stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from sparrow_analysis.read import latest_sweep
from sparrow_lab.errors import UserError
from tests.analysis.simulated import World, ladder, step_at, write_sweep

NOTEBOOK = Path(__file__).parents[2] / "analysis" / "notebooks" / "percentile_curves.ipynb"
WORLD = World(
    ladder([0.6, 0.75, 0.82, 0.9, 0.96]), step_at(0.86), seeds=2, steps=8, evaluate_every=2
)


def test_it_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_what_the_figure_shows_is_asked_not_asserted() -> None:
    """A text is written before the sweep that it stands beside."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (text,) = [c.source for c in notebook.cells if c.source.startswith("## Acceptance by length")]
    assert "does the 5th percentile fall with it here" in text
    assert "percentile falls" not in text


@pytest.mark.slow
def test_it_runs_on_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_sweep(tmp_path, WORLD)
    monkeypatch.setenv("SPARROW_SWEEP", str(sweep.path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 6
    text = "".join(o.get("text", "") for o in outputs)
    assert "Collapse threshold: p5 = 0.8" in text
    assert not [o for o in outputs if o.output_type == "error"]
    assert not [o for o in outputs if o.get("name") == "stderr"]


def test_the_latest_sweep_is_the_one_that_changed_last(tmp_path: Path) -> None:
    small = World(ladder([0.6]), step_at(0.86), seeds=1, steps=2)
    for age, name in enumerate(["b", "a", "c"]):
        sweep = write_sweep(tmp_path, small, name)
        os.utime(sweep.plan_path, (1_000_000 + age, 1_000_000 + age))
    assert latest_sweep(tmp_path) == tmp_path / "c"
    (tmp_path / "a" / "ledger.jsonl").write_text("")
    assert latest_sweep(tmp_path) == tmp_path / "a"
    with pytest.raises(UserError, match="no sweep here"):
        latest_sweep(tmp_path / "elsewhere")
