"""`sparrow-lab sweep` itself: dry runs, mistakes, and a finished sweep run again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.cli import main
from sparrow_lab.config.load import load_sweep
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.plan import make_plan

EXPERIMENT = """
name: small
base:
  sparsity:
    dense_layers: 1
sweep:
  axes:
    sparsity.page_size: [8]
    sparsity.schedule: [dense, {tau: 0.8}]
    seed: [0, 1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *arguments])
    return int(ended.value.code or 0)


def test_a_dry_run_lists_the_points(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path / "runs")]
    assert call(str(file), "--dry-run", *runs) == 0
    said = capsys.readouterr().out
    assert "small: 11 points: 1 calibrate, 2 schedule, 4 train, 4 evaluate" in said
    assert "11 points would run" in said
    assert call(str(file), "--dry-run", "--only", "1", "--local", *runs) == 0
    assert "3 points would run" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "base.sparsity.page_sice=8"], "page_sice"),
        (["--set", "base.sparsity.page_size=8"], "this has no effect"),
        (["--parallel", "0"], "--parallel"),
    ],
)
def test_mistakes_are_one_line(
    file: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(file), *options) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1


def test_a_missing_file_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(tmp_path / "no.yaml")) == 2
    assert "no.yaml" in capsys.readouterr().err


def test_a_finished_sweep_says_so_quickly_and_starts_nothing(file: Path, tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path / "runs" / "small")
    sweep.write_plan(make_plan(load_sweep(file), file.parent))
    for point in sweep.points():
        point.write_result({"metrics": {}})
    code = (
        "import sys\nfrom sparrow_lab.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as ended:\n"
        "    assert ended.code == 0, ended.code\n"
        "heavy = ['torch', 'transformers', 'mlflow', 'pandas', 'submitit']\n"
        "found = [name for name in heavy if name in sys.modules]\n"
        "assert not found, found\n"
    )
    before = sorted(p.name for p in sweep.path.iterdir())
    begun = time.monotonic()
    command = [sys.executable, "-c", code, "sweep", str(file), "--runs", str(tmp_path / "runs")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "small: all 11 points are done" in run.stdout
    assert time.monotonic() - begun < 15  # under 3 s where nothing else runs
    assert sorted(p.name for p in sweep.path.iterdir()) == before


def test_an_output_folder_that_cannot_be_written(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file")
    assert call(str(file), "--runs", str(tmp_path / "runs")) == 2
    said = capsys.readouterr()
    assert "cannot write into the output folder" in said.err and str(tmp_path) in said.err
