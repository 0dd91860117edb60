"""The commands on a cluster: preview, budget, extending, pruning, cancel, retry, status, logs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sparrow_lab.cli import main
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.search.at_work import controller_folder
from sparrow_lab.sweep.slurm.cluster import Cluster
from sparrow_lab.sweep.slurm.programs import call as ask_slurm
from sparrow_lab.sweep.slurm.squeue import job_name, read_queue
from sparrow_lab.sweep.slurm.submit import submit
from tests.sweep import fakes
from tests.sweep.slurm.conftest import Handed, HandIn

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
tracking:
  enabled: false
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A pretended cluster on which jobs only wait."""
    fake = FakeSlurm(tmp_path / "slurm", max_array=3)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", fake.path)
    return fake


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call `sparrow-lab` in this process; its exit code, stdout and stderr."""
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    (tmp_path / "site.yaml").write_text("partition: main\ngpus: 2\ntime: 60\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--runs", str(tmp_path / "runs")])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def sweep(tmp_path: Path, *more: str) -> tuple[str, ...]:
    return ("sweep", str(tmp_path / "small.yaml"), "--site", str(tmp_path / "site.yaml"), *more)


def states(call: Call) -> dict[str, str]:
    data = json.loads(call("status", "small", "--json")[1])
    return {p["id"]: p["state"] for p in data["points"]}


# ------------------------------------------------------------------- sweep


def test_a_dry_run_shows_arrays_and_gpu_hours(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    code, out, _ = call(*sweep(tmp_path, "--dry-run"))
    assert code == 0
    assert "on the cluster, a job: partition main, 2 GPUs, 8 CPUs, 60 min" in out
    assert "train: 1 job first, then 2 arrays of 1 and 2" in out
    assert "at most 3 jobs an array" in out and "GPU-hours to come" in out
    assert not (tmp_path / "runs").exists()
    assert waiting.calls("sbatch") == []


def test_a_sweep_is_submitted_and_the_command_returns(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    code, out, _ = call(*sweep(tmp_path))
    assert code == 0 and "submitted 11 points in 6 arrays" in out
    assert set(states(call).values()) == {"pending", "submitted"}
    # again: nothing is submitted twice
    code, out, _ = call(*sweep(tmp_path))
    assert code == 0 and "nothing is left to submit" in out
    assert len(waiting.calls("sbatch")) == 6
    # and a run on this machine leaves alone what the cluster has
    code, out, _ = call("sweep", str(tmp_path / "small.yaml"), "--only", "1", "--local")
    assert code == 1 and "pending" in out
    assert not list((tmp_path / "runs" / "small" / "points").glob("*/attempts"))


def test_without_a_canary_a_stage_begins_at_once(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    code, out, _ = call(*sweep(tmp_path, "--set", "launch.canary=false"))
    assert code == 0 and "submitted 11 points in 5 arrays" in out


def test_the_budget_is_checked_before_anything_is_written(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text("gpus: 1\nmax_gpu_hours: 0.0001\n")
    for more in (("--dry-run",), ()):
        code, _, err = call(*sweep(tmp_path, *more))
        assert code == 2
        assert "site.yaml:2:16" in err and "above max_gpu_hours = 0.0001" in err
    assert waiting.calls("sbatch") == []
    code, _, err = call(*sweep(tmp_path, "--set", "launch.max_gpu_hours=0.00001"))
    assert code == 2 and "--set launch.max_gpu_hours" in err
    # without GPUs nothing is spent
    (tmp_path / "site.yaml").write_text("max_gpu_hours: 0.0001\n")
    assert call(*sweep(tmp_path))[0] == 0


def test_an_extended_axis_and_a_dropped_value(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    call(*sweep(tmp_path))
    file = tmp_path / "small.yaml"
    file.write_text(EXPERIMENT.replace("seed: [0, 1]", "seed: [1, 2]"))
    code, out, _ = call(*sweep(tmp_path))
    assert code == 0 and "7 kept, 4 new" in out
    assert "4 no longer in the file, left alone; --prune cancels them" in out
    assert "submitted 4 points" in out
    before = len(read_queue().elements)
    # what an earlier command dropped is seen, and can still be reached
    code, out, _ = call("status", "small")
    assert "no longer in the file: 2 pending, 2 submitted; " in out
    code, out, _ = call(*sweep(tmp_path, "--prune", "--dry-run"))
    assert code == 0 and "--prune would cancel 4 points:" in out
    assert re.search(r"train .*seed=0.*, planned", out) and len(read_queue().elements) == before
    code, out, _ = call(*sweep(tmp_path, "--prune"))
    assert code == 0 and "2 jobs cancelled" in out
    assert len(read_queue().elements) == before - 2
    assert "no longer in the file" not in call("status", "small")[1]
    code, out, _ = call(*sweep(tmp_path, "--prune", "--dry-run"))
    assert code == 0 and "--prune would cancel nothing" in out
    code, out, _ = call(*sweep(tmp_path, "--prune"))
    assert code == 0 and "cancelled" not in out
    file.write_text(EXPERIMENT.replace("seed: [0, 1]", "seed: [1]"))
    code, out, _ = call(*sweep(tmp_path, "--prune"))
    assert code == 0 and "4 no longer in the file, to be cancelled" in out
    assert len(read_queue().elements) == before - 4
    assert "2 jobs cancelled" in out


def test_cancel_takes_what_has_left_the_file_too(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    call(*sweep(tmp_path))
    (tmp_path / "small.yaml").write_text(EXPERIMENT.replace("seed: [0, 1]", "seed: [1]"))
    code, _, _ = call(*sweep(tmp_path))
    assert code == 0 and read_queue().elements
    # one that cannot be read any more hinders nobody
    left = json.loads(call("status", "small", "--json")[1])["dropped"]
    assert len(left) == 4
    (tmp_path / "runs" / "small" / "points" / left[-1]["id"] / "point.json").write_text("")
    assert len(json.loads(call("status", "small", "--json")[1])["dropped"]) == 3
    assert call("cancel", "small")[0] == 0
    assert not read_queue().elements


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--local",), "--site and --local exclude each other"),
        (("--site", "no.yaml"), "no.yaml"),
        (("--site", "."), "this is a folder; give a site file (.yaml)"),
    ],
)
def test_mistakes_are_one_line(
    waiting: FakeSlurm, call: Call, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    code, _, err = call(*sweep(tmp_path, *more))
    assert code == 2 and said in err and err.count("\n") == 1
    code, _, err = call("sweep", str(tmp_path / "small.yaml"), "--watch")
    assert code == 2 and "--watch" in err


def test_no_slurm_on_this_machine_is_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = call(*sweep(tmp_path))
    assert code == 2 and err.count("\n") == 1
    assert "squeue: there is no such program on this machine" in err


# ------------------------------------------------------------------- status


def test_status_knows_what_slurm_says_and_writes_nothing(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    call(*sweep(tmp_path))
    first = str(waiting.tasks()[0]["job"])
    waiting.set_state(first, "RUNNING")
    found = states(call)
    assert list(found.values()).count("running") == 1
    assert "pending: 5 wait for what they need" in call("status", "small")[1]
    waiting.show_as(PENDING="POWERING_UP_NODE", RUNNING="WARMING")
    before = Ledger(tmp_path / "runs" / "small" / "ledger.jsonl").read()
    code, out, _ = call("status", "small", "--all")
    assert code == 0 and "Slurm says WARMING" in out
    assert Ledger(tmp_path / "runs" / "small" / "ledger.jsonl").read() == before
    waiting.mend()
    waiting.fail("squeue", "squeue: error: Unable to contact slurm controller", times=None)
    code, out, _ = call("status", "small")
    assert code == 0 and out.count("the queue is not known, only files") == 1
    assert "failed" not in out and "lost" not in out


def test_status_says_why_the_controller_of_a_search_waits(
    waiting: FakeSlurm, call: Call, tmp_path: Path
) -> None:
    call(*sweep(tmp_path))
    folder = SweepFolder(tmp_path / "runs" / "small")
    controller_folder(folder).mkdir()
    token = "c0ffee"
    words = ["--parsable", "--hold", "--array=0-0", f"--job-name={job_name(token)}"]
    job = ask_slurm(["sbatch", *words, "--wrap=true"]).strip()
    Ledger(folder.ledger_path).append("controller", token=token, job=job)
    said = call("status", "small")[1]
    assert f"controller: job {job}_0, pending: is held in the queue" in said
    # one that has never had a node says nothing, one that could not begin does
    waiting.set_state(job, "FAILED")
    assert "controller" not in call("status", "small")[1]
    folder.submission(token).mkdir()
    (folder.submission(token) / "0.log").write_text("no module cuda/99\n")
    said = call("status", "small")[1]
    assert f"controller: its job {job} ended before it had begun: no module cuda/99" in said
    (folder.submission(token) / "0.log").write_text("10:00 controller of small begins\n")
    assert "controller" not in call("status", "small")[1]


def test_a_job_that_left_without_a_word_is_lost_with_slurms_reason(
    waiting: FakeSlurm, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow_lab.sweep.slurm.states.SETTLING_S", 0.0)
    call(*sweep(tmp_path))
    job = str(waiting.tasks()[0]["job"])
    waiting.set_state(job, "OUT_OF_MEMORY")
    data = json.loads(call("status", "small", "--json")[1])
    (lost,) = [p for p in data["points"] if p["state"] == "lost"]
    assert lost["reason"] == "its job left the queue before it had begun (Slurm: OUT_OF_MEMORY)"
    waiting.no_accounting()
    assert states(call)[lost["id"]] == "lost"
    code, out, _ = call(*sweep(tmp_path))
    assert code == 0 and "submitted 1 point in 1 array" in out


# ------------------------------------------------------------------- cancel, retry, logs


def test_cancel_some_and_take_them_up_again(waiting: FakeSlurm, call: Call, tmp_path: Path) -> None:
    call(*sweep(tmp_path))
    code, out, _ = call("cancel", "small", "--where", "seed=1")
    assert code == 0 and "2 jobs cancelled, 0 asked to save and leave" in out
    assert list(states(call).values()).count("cancelled") == 4
    code, out, _ = call("retry", "small", "--cancelled", "--where", "seed=1,stage=train")
    assert code == 0 and "submitted 2 points in 2 arrays" in out
    assert "taking up 2 cancelled points again" in out


def failing(hand_in: HandIn, **options: Any) -> Handed:
    point = fakes.make_point("aa00", "train", label={"seed": 0}, **options)
    handed = hand_in(Plan("bad", {}, (point,)))
    submit(handed.sweep, handed.site, fakes_options(handed), handed.said.append, fakes.STAGES)
    handed.over()
    return handed


def fakes_options(handed: Handed) -> Options:
    cluster = Cluster(handed.site, Path(handed.site._file))
    return Options(retries=0, notes={"site": cluster.to_json()})


def test_a_failure_is_one_line_in_status_and_whole_in_logs(
    fake_slurm: FakeSlurm, hand_in: HandIn, call: Call
) -> None:
    failing(hand_in, fail_at=2)
    code, out, _ = call("status", "bad")
    assert code == 0 and "ValueError: no luck at step 2" in out
    code, out, _ = call("logs", "aa00", "--sweep", "bad")
    assert code == 0 and out.rstrip().endswith("ValueError: no luck at step 2")
    assert "Traceback" in out


def test_a_returned_error_is_a_failure(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(Plan("odd", {}, (fakes.make_point("aa00", "odd"),)))
    stages = {"odd": "tests.sweep.slurm.odd:returns_an_error"}
    submit(handed.sweep, handed.site, fakes_options(handed), handed.said.append, stages)
    assert handed.over() == {"aa00": "failed"}
    assert "ValueError: caught by itself" in handed.reasons()["aa00"]


def test_a_worker_that_cannot_start_is_a_failure_that_names_its_log(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = hand_in(Plan("odd", {}, (fakes.make_point("aa00", "train"),)))
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # as on a node without the environment
    handed.submit()
    monkeypatch.delenv("PYTHONHOME")
    assert handed.over() == {"aa00": "failed"}
    why = "its job ended before its worker had begun (exit code 1): "
    assert handed.reasons()["aa00"].startswith(why) and len(handed.reasons()["aa00"]) > len(why)


def test_a_worker_that_dies_before_it_begins_is_a_failure_with_its_last_words(
    fake_slurm: FakeSlurm, hand_in: HandIn, call: Call
) -> None:
    handed = hand_in(Plan("odd", {}, (fakes.make_point("aa00", "train"),)))
    (handed.sweep.point("aa00").path / "point.json").unlink()  # the element cannot even read it
    submit(handed.sweep, handed.site, fakes_options(handed), handed.said.append, fakes.STAGES)
    assert handed.over() == {"aa00": "failed"}
    assert "no readable point.json" in handed.reasons()["aa00"]
    code, out, _ = call("status", "odd")
    assert code == 0 and "(exit code 1)" in out and "no readable point.json" in out
    code, out, _ = call("logs", "aa00", "--sweep", "odd")
    assert code == 0 and "Traceback" in out
    (log,) = handed.sweep.path.glob("submitted/*/0.log")
    assert out.splitlines()[-1].endswith(f"all that it printed: {log}")
    assert call("logs", "aa00", "--sweep", "odd", "--attempt", "1")[0] == 2


def test_retry_submits_to_the_same_site(fake_slurm: FakeSlurm, hand_in: HandIn, call: Call) -> None:
    handed = failing(hand_in, fail_at=2)
    code, out, _ = call("retry", "bad", "--failed")
    assert code == 0 and "submitted 1 point in 1 array" in out
    assert isinstance(handed.sweep, SweepFolder)
    assert len(read_queue().elements) <= 1


def test_retry_forgives_a_job_that_could_not_begin(
    fake_slurm: FakeSlurm, hand_in: HandIn, call: Call
) -> None:
    handed = hand_in(Plan("bad", {}, (fakes.make_point("aa00", "train"),)), setup="[exit 7]")
    submit(handed.sweep, handed.site, fakes_options(handed), handed.said.append, fakes.STAGES)
    assert handed.over() == {"aa00": "failed"}
    # it may not be tried again by itself: retries are 0
    submit(handed.sweep, handed.site, fakes_options(handed), handed.said.append, fakes.STAGES)
    assert handed.said[-1] == "left alone: 1 failed"
    for _ in range(2):
        code, out, _ = call("retry", "bad", "--failed")
        assert code == 0 and "trying 1 failed point again" in out
        assert "submitted 1 point in 1 array" in out
        assert handed.over() == {"aa00": "failed"}


def test_watching_ends_with_the_sweep_and_its_code(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow_lab.sweep.slurm.cluster.WATCH_S", 0.2)
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.9, 0): {"fail_at": 2}})
    handed = hand_in(plan)
    handed.submit(retries=0)
    cluster = Cluster(handed.site, Path(handed.site._file), watch=True)
    console = Console(file=io.StringIO(), record=True, width=200)
    assert cluster.after(handed.sweep, console, None) == 1
    said = console.export_text()
    # how many were done at the first look depends on the machine
    assert re.search(r"fake: \d of 7 points done", said) and "5 done, 1 held, 1 failed" in said
    assert "no luck at step 2" in said
