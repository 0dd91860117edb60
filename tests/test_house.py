"""The house itself: what is packed, who imports whom, and whether the README tells the truth."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparrow_lab.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "sparrow_lab": ROOT / "sparrow_lab",
    "sparrow_kernels": ROOT / "kernels" / "sparrow_kernels",
    "sparrow_analysis": ROOT / "analysis" / "sparrow_analysis",
}
MAX_LINES = 450

HEAVY = ("torch", "transformers", "peft", "mlflow", "datasets", "optuna", "matplotlib", "pandas")
"""Libraries that cost a second or more to import; a light module loads them inside functions."""

LIGHT = (
    "sparrow_lab.cli",
    "sparrow_lab.doctor",
    "sparrow_lab.config",
    "sparrow_lab.runs",
    "sparrow_lab.sweep",
    "sparrow_lab.tracking",
    "sparrow_lab.acceptance.histogram",
    "sparrow_lab.sparsity.schedule",
    "sparrow_lab.sparsity.calibration",
)

KNOWN_TO_ANALYSIS = (
    "sparrow_lab.runs",
    "sparrow_lab.config",
    "sparrow_lab.acceptance.histogram",
    "sparrow_lab.sparsity.schedule",
    "sparrow_lab.errors",
)


def packaged_files() -> dict[str, Path]:
    """Every file of the three packages, by its name inside the wheel."""
    return {
        (Path(name) / path.relative_to(folder)).as_posix(): path
        for name, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def python_files(*, tests: bool = False) -> list[Path]:
    files = [path for path in packaged_files().values() if path.suffix == ".py"]
    return files + (sorted((ROOT / "tests").rglob("*.py")) if tests else [])


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command, fail the test with its output if it fails, and return its stdout."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ------------------------------------------------------------------------ packaging
@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the working tree without network."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_three_packages(wheel: zipfile.ZipFile) -> None:
    assert packaged_files().keys() - set(wheel.namelist()) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        r"sparrow_lab/models/assets/.*\.safetensors",
        r"sparrow_lab/sparsity/presets/.+\.json",
        r"sparrow_analysis/report/.+\.(html|j2|jinja|css)",
        r"sparrow_lab/py\.typed",
        r"sparrow_kernels/py\.typed",
        r"sparrow_analysis/py\.typed",
    ],
)
def test_the_wheel_holds_the_data_files(wheel: zipfile.ZipFile, pattern: str) -> None:
    assert any(re.fullmatch(pattern, name) for name in wheel.namelist())


@pytest.mark.slow
def test_the_wheel_runs_without_the_working_tree(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    code = (
        "import sparrow_lab, sparrow_kernels, sparrow_analysis\n"
        "print(sparrow_lab.__file__, sparrow_kernels.__file__, sparrow_analysis.__file__)\n"
        "import sys; sys.argv = ['sparrow-lab', '--help']\n"
        "from sparrow_lab.cli import main; main()"
    )
    out = run(sys.executable, "-c", code, env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path)
    places = out.splitlines()[0].split()
    assert [place.startswith(str(tmp_path / "site")) for place in places] == [True] * 3
    assert "sweep" in out


def test_git_ignores_no_file_of_a_package() -> None:
    """A pattern such as `models/` would hide a package from git and from the wheel."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=ROOT,
        input="\n".join(str(path) for path in packaged_files().values()),
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""


# ------------------------------------------------------------------------ import order
def test_the_rooms_import_one_way() -> None:
    out = run(Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache")
    assert "0 broken" in out


@pytest.mark.parametrize("room", LIGHT)
def test_a_light_room_loads_nothing_heavy(room: str) -> None:
    """Import every module of the room in a fresh interpreter and look at what came along."""
    code = f"""
import importlib, pkgutil, sys
room = importlib.import_module({room!r})
names = [m.name for m in pkgutil.walk_packages(getattr(room, "__path__", []), {room!r} + ".")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(" ".join(name for name in {HEAVY!r} if name in sys.modules))
"""
    assert run(sys.executable, "-c", code).strip() == ""


def test_the_analysis_loads_no_torch() -> None:
    code = """
import importlib, pkgutil, sys
import sparrow_analysis
for m in pkgutil.walk_packages(sparrow_analysis.__path__, "sparrow_analysis."):
    importlib.import_module(m.name)
print(" ".join(name for name in ("torch", "transformers", "mlflow") if name in sys.modules))
"""
    assert run(sys.executable, "-c", code).strip() == ""


def imported_modules(path: Path) -> set[str]:
    """Absolute names that a file imports anywhere, `from a import b` as a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_analysis_knows_only_four_rooms() -> None:
    strangers = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in PACKAGES["sparrow_analysis"].rglob("*.py")
        for name in imported_modules(path)
        if name.split(".")[0] == "sparrow_lab"
        and not any(f"{name}.".startswith(f"{known}.") for known in KNOWN_TO_ANALYSIS)
    }
    assert strangers == set()


# ------------------------------------------------------------------------ shape of the files
def test_every_public_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if (path.stem == "__init__" or not path.stem.startswith("_"))
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(tests=True)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


# ------------------------------------------------------------------------ the README is true
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_of(text: str) -> str:
    """Only what the README sets as code: indented blocks and `spans`."""
    blocks = re.findall(r"^ {4}(.*)$", text, flags=re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])


def test_the_readme_names_existing_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", code_of(README)))
    assert {"sweep", "test"} <= named
    assert named - targets == set()


def test_the_readme_names_existing_commands() -> None:
    named = set(re.findall(r"\bsparrow-lab ([a-z][a-z-]*)", code_of(README)))
    assert named
    assert named - COMMANDS.keys() == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_listed_command_is_there(name: str) -> None:
    assert (PACKAGES["sparrow_lab"] / "cli" / f"{name}.py").is_file()


def test_the_readme_names_existing_files() -> None:
    named = set(re.findall(r"\b((?:experiments|slurm|analysis)/[\w./-]*\w)", code_of(README)))
    named |= {target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target}
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_readme_lists_every_environment_variable() -> None:
    read = {
        name
        for path in python_files()
        for name in re.findall(r"\bSPARROW_[A-Z][A-Z_]*\b", path.read_text(encoding="utf-8"))
    }
    assert set(re.findall(r"\bSPARROW_[A-Z][A-Z_]*\b", README)) == read


# ------------------------------------------------------------------------ make and CI
def test_make_says_when_python_is_too_old(tmp_path: Path) -> None:
    """`make sweep` on a machine whose python3 is 3.9, as macOS ships it."""
    old = tmp_path / "python3.9"
    pretend = "import sys; sys.version_info = (3, 9, 6, 'final', 0); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "sweep", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        # without what an outer `make test VENV=...` hands down
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "is Python 3.9; sparrow-lab needs 3.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_ci_script_is_sound_bash() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    run("bash", "-n", script)
