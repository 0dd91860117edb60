"""The benchmark of large sweeps: what it times is real, and a missed target shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparrow_lab.cli import main
from sparrow_lab.config.load import load_sweep
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep import bench
from sparrow_lab.sweep.plan import make_plan


@pytest.mark.parametrize("points", [30, 1000])
def test_the_experiment_has_about_so_many_points(points: int, tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text(bench.experiment(points))
    assert abs(len(make_plan(load_sweep(file), tmp_path).points) - points) <= 10


def test_time_and_memory_of_a_command() -> None:
    code = "import time; data = bytearray(80_000_000); time.sleep(0.3)"
    # by a small process, as the command is: Linux counts the memory that a child began with
    asked = (
        "import json, sys; from sparrow_lab.sweep import bench; "
        f"print(json.dumps(bench.measure([sys.executable, '-c', {code!r}], {{}})))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    seconds, cpu_s, peak_mb = json.loads(done.stdout)
    assert 0.3 <= seconds < 20 and 0 < cpu_s < seconds and 80 <= peak_mb < 300
    with pytest.raises(UserError, match="ValueError: no"):
        bench.measure([sys.executable, "-c", "raise ValueError('no')"], {})


@pytest.mark.parametrize(
    ("seconds", "peak_mb", "target", "good"),
    [(1, 100, 2, True), (3, 100, 2, False), (3, 100, None, True), (1, 900, None, False)],
)
def test_targets(seconds: float, peak_mb: float, target: float | None, good: bool) -> None:
    assert bench.Step("x", seconds, 0.5, peak_mb, target).good == good


@pytest.mark.slow
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "bench"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "sweep", "--points", "60", "--folder", str(folder), "--check"])
    said = capsys.readouterr().out
    assert ended.value.code in (0, 1)
    for what in ("plan and preview", "plan and submit", "status, half of them done"):
        assert what in said
    sweep = SweepFolder(folder / "runs" / "bench")
    plan = sweep.read_plan()
    done = [p for p in plan.points if sweep.point(p.id).read_result() is not None]
    assert len(plan.points) == 52 and len(done) == 26
    assert list((sweep.path / "submitted").iterdir())
