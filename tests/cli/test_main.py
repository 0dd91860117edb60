"""The command line as a whole: fast, lazy, one line for a mistake, the right exit code."""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sparrow_lab import cli
from sparrow_lab.cli import commands, main
from sparrow_lab.cli.commands import COMMANDS
from sparrow_lab.errors import UserError

HEAVY = {"torch", "transformers", "mlflow", "pandas", "matplotlib", "datasets", "pydantic", "numpy"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    command = [sys.executable, "-m", "sparrow_lab.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `main` in this process; exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_help_lists_every_command_and_takes_little_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in COMMANDS)
    # processor time: what this machine's other work does not change
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom sparrow_lab.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    assert "typer" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert importlib.util.find_spec(f"sparrow_lab.cli.{name}") is not None
    code, out, err = call(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"sparrow-lab {name}" in out


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert "Usage: sparrow-lab" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--version")
    assert code == 0
    assert out.strip()[0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swep"], "No such command 'swep'. Did you mean 'sweep'?"),
        (["--nope"], "No such option: --nope"),
        (["sweep"], "Missing argument"),
        (["sweep", "a.yaml", "--paralel", "2"], "No such option: --paralel"),
        (["sweep", "a.yaml", "--parallel", "x"], "--parallel: found 'x'; allowed: a whole number;"),
        (["schedule", "--rule", "x"], "--rule: found 'x'; allowed: estimate, lower;"),
        (["sweep", "a.yaml", "--only=1.5"], "--only: found '1.5'; allowed: a whole number;"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: sparrow-lab")
    assert words in err
    assert err.count("\n") == 1
    assert "--help" in err


def fake(monkeypatch: pytest.MonkeyPatch, raised: BaseException | int) -> None:
    """Put a command `sync` in place that raises or returns what is given."""
    module = ModuleType("sparrow_lab.cli.sync")

    def command() -> int:
        if isinstance(raised, BaseException):
            raise raised
        return raised

    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sparrow_lab.cli.sync", module)


@pytest.mark.parametrize(
    ("raised", "code", "err"),
    [
        (UserError("bad\nthing", "f.yaml:1:2"), 2, "error: f.yaml:1:2: bad thing\n"),
        (UserError("bad"), 2, "error: bad\n"),
        (KeyboardInterrupt(), 130, ""),
        (0, 0, ""),
        (1, 1, ""),
        (3, 3, ""),
    ],
)
def test_what_a_command_does_becomes_an_exit_code(
    raised: BaseException | int,
    code: int,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake(monkeypatch, raised)
    assert call(capsys, "sync") == (code, "", err)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["sync"])


def test_a_missing_module_breaks_only_its_own_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "gone", commands.Entry("Not here.", "Tools"))
    code, _, err = call(capsys, "gone")
    assert (code, err) == (2, "error: gone: this command is not part of this installation\n")
    assert call(capsys, "--help")[0] == 0


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'mlflow'", name="mlflow")

    monkeypatch.setattr(commands, "import_module", missing)
    code, _, err = call(capsys, "sync")
    assert code == 2
    assert "'mlflow' is not installed" in err


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparrow_lab.cli", "--help"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_module_and_the_script_are_one() -> None:
    script = Path(sys.executable).with_name("sparrow-lab")
    done = subprocess.run(
        [str(script), "swep"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (2, run("swep").stderr)
    assert cli.__all__ == ["app", "main"]
