"""Bad experiment files through the command line: exit code 2, one line, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparrow_lab.cli import main

GOOD = "name: a\nbase: {train: {steps: 2}}\n"

FILES: dict[str, tuple[bytes | str, str]] = {
    "duplicate key": ("name: a\nbase: {}\nname: b\n", ":3:1: the key 'name' is given twice; first"),
    "tab": ("name: a\nbase:\n\tseed: 1\n", ":3:1: a tab cannot indent YAML"),
    "broken": ("name: [a\n", "ends too early"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\x80\xff", ": this is not UTF-8 text"),
    "empty": ("", "this file is empty"),
    "only a comment": ("# nothing\n", "this file is empty"),
    "list on top": ("- a\n", ":1:1: found a list of 1; allowed: a mapping"),
    "include loop": ("include: [s.yaml]\nname: a\n", ":1:11: these files include each other"),
    "include gone": ("include: [gone.yaml]\nname: a\n", ":1:11: include: there is no file"),
    "no name": ("base: {}\n", ":1:1: the key 'name' is missing"),
    "unknown key": ("name: a\nbse: {}\n", ":2:1: unknown key 'bse' (did you mean 'base'?)"),
    "octal": ("name: a\nbase: {seed: 010}\n", ":2:14: base.seed: found the text '010'"),
    "time": ("name: a\nlaunch: {timeout_min: 12:30:00}\n", ":2:23: launch.timeout_min"),
    "text": ("name: a\nbase: {train: {lr: 'x'}}\n", ":2:20: base.train.lr: found the text 'x'"),
    "float": ("name: a\nbase: {seed: 1.0}\n", ":2:14: base.seed: found 1.0; allowed: a whole"),
    "bool": ("name: a\nbase: {train: {lr: true}}\n", ":2:20: base.train.lr: found true"),
    "no truth": ("name: a\ntracking: {enabled: NO}\n", ":2:21: tracking.enabled: found the text"),
    "schedule": ("name: a\nbase: {sparsity: {schedule: {tua: 1}}}\n", "(did you mean 'tau'?)"),
    "tau 0": ("name: a\nbase: {sparsity: {schedule: {tau: 0}}}\n", "found 0; allowed: a number"),
    "tau 2": ("name: a\nbase: {sparsity: {schedule: {tau: 2}}}\n", "found 2; allowed: a number"),
    "page 0": ("name: a\nbase: {sparsity: {page_size: 0}}\n", "sparsity.page_size: found 0"),
    "budget": (
        "name: a\nbase: {sparsity: {page_size: 64, schedule: {budget: 128}}}\n",
        ":2:53: sparsity.schedule.budget: found 128, but at page size 64 the 3 reserved pages",
    ),
    "model": (
        "name: a\nbase: {model: {name: tiny-x}}\n",
        ":2:22: no model 'tiny-x' (did you mean 'tiny-s'?)",
    ),
    "params": ("name: a\nbase: {task: {params: {pears: 1}}}\n", "(did you mean 'pairs'?)"),
    "axis": ("name: a\nsweep: {axes: {sede: [1]}}\n", ":2:16: there is no field 'sede' (did you"),
    "empty axis": ("name: a\nsweep: {axes: {seed: []}}\n", ":2:16: the axis 'seed' has no values"),
    "axis twice": (
        "name: a\nsweep: {axes: {seed: [1, 1]}}\n",
        ":2:26: the axis 'seed' has 1 twice",
    ),
    "axis type": ("name: a\nsweep: {axes: {seed: [1, b]}}\n", ":2:26: seed: found the text 'b'"),
    "zip": ("name: a\nsweep: {zip: [{seed: [1], threads: [1, 2]}]}\n", "'threads' has 2"),
    "exclude": (
        "name: a\nsweep: {axes: {seed: [1]}, exclude: [{seed: 3}]}\n",
        ":2:38: this entry of 'exclude' matches no combination",
    ),
    "stages": ("name: a\nstages: [evaluate]\n", ":2:10: stages: 'evaluate' needs 'train'"),
}

OPTIONS: dict[str, tuple[str, str]] = {
    "no value": ("train.lr", "found no 'path=value'"),
    "typo": ("train.lrr=1", "unknown key 'lrr' in 'base.train' (did you mean 'lr'?)"),
    "type": ("train.lr=1e-5x", "base.train.lr: found the text '1e-5x'"),
    "broken": ("train.lr=[", "ends too early"),
    "twice": ("sweep.axes={seed: [1], seed: [2]}", "given twice"),
    "tau": ("sparsity.schedule.tau=1.5", "found 1.5"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, with runs and MLflow inside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARROW_RUNS", str(tmp_path / "runs"))
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `sweep`, expect exit code 2 and one line on stderr; return the line."""
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *arguments])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(Path.cwd().rglob("*")) == before, "something was written"
    return err


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = FILES[kind]
    path = folder / "s.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(capsys, "s.yaml")
    assert line.startswith("error: s.yaml")
    assert words in line


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_bad_option(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = OPTIONS[kind]
    (folder / "s.yaml").write_text(GOOD)
    line = refused(capsys, "s.yaml", "--set", text)
    assert line.startswith(f"error: --set {text}: ")
    assert words in line


def test_a_missing_file_and_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "smoke.yaml").write_text(GOOD)
    assert "(did you mean 'smoke.yaml'?)" in refused(capsys, "smok.yaml")
    assert "is a folder" in refused(capsys, ".")


LONG = "a" * 300
"""Longer than a name of a file may be."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", LONG], "no sweep 'aaa"),
        (["logs", "x", "--sweep", LONG], "no sweep 'aaa"),
        (["report", LONG], "no sweep 'aaa"),
        (["sync", LONG], "no sweep 'aaa"),
        (["sweep", LONG], "File name too long"),
        (["sweep", "s.yaml", "--set", f"base.model.name={LONG}"], "File name too long"),
        (["sweep", "s.yaml", "--set", f"base.task.dataset={LONG}", "--set",
          "base.task.name=jsonl", "--set", "base.model.name=a/b"], "no data file 'aaa"),
        (["sweep", "/dev/null"], "this is no file"),
        (["schedule", "--curve", "list.json", "--tau", "0.8"], "it holds a list"),
        (["logs", "x", "--stage", "trian"], "(did you mean 'train'?)"),
        (["calibrate", "--model", LONG, "--page-size", "8"], "File name too long"),
        (["calibrate", "--model", "tiny-s", "--page-size", "8", "-o", "s.yaml"], "is a file"),
        (["calibrate", "--model", "tiny-s", "--page-size", "8", "-o", "/proc/x"], "cannot write"),
    ],
)  # fmt: skip
def test_arguments_that_no_file_system_takes(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s.yaml").write_text(GOOD)
    (folder / "list.json").write_text("[1]")
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert words in err and err.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == ["list.json", "s.yaml"]


@pytest.mark.parametrize("kind", ["duplicate key", "binary", "axis", "budget"])
def test_in_a_process_of_its_own(kind: str, folder: Path) -> None:
    content, words = FILES[kind]
    (folder / "s.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    command = [sys.executable, "-m", "sparrow_lab.cli", "sweep", "s.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == ["s.yaml"]


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "s.yaml").write_text(GOOD)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "s.yaml", "--dry-run", "--set", "train.lr=1e-05"])
    assert not stop.value.code
    assert "train" in capsys.readouterr().out
    assert sorted(p.name for p in folder.iterdir()) == ["s.yaml"]
