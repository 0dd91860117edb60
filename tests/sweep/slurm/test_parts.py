"""The small parts of a submission, each by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparrow_lab.config.site import SiteConfig, load_site
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.slurm import breaker, snapshot
from sparrow_lab.sweep.slurm.blame import blamed_key
from sparrow_lab.sweep.slurm.chunk import Chunk, read_chunk
from sparrow_lab.sweep.slurm.executor import ArrayExecutor, read_id
from sparrow_lab.sweep.slurm.limits import read_limits
from sparrow_lab.sweep.slurm.programs import SlurmError, call
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.tally import may_try_again, stuck
from tests.sweep import fakes
from tests.sweep.slurm.conftest import HandIn
from tests.sweep.watching import wait_until


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("123\n", "123"),
        ("123;cluster-b\n", "123"),
        ("Submitted batch job 77\n", "77"),
        ("Welcome! Your last job 5 ended well.\n123\n", "123"),
        ("Welcome! Your last job 5 ended well.\n", None),
        ("", None),
    ],
)
def test_the_number_of_a_job_is_a_line_of_its_own(said: str, found: str | None) -> None:
    assert read_id(said) == found


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("Batch job submission failed: Invalid partition name specified", "partition"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Batch job submission failed: Invalid qos specification", "qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Batch job submission failed: Invalid feature specification", "constraint"),
        ("Invalid generic resource (gres) specification", "gpus"),
        ("Memory specification can not be satisfied", "mem"),
        ("Requested node configuration is not available", "gpus"),
        ("Requested reservation is invalid", "reservation"),
        ("Invalid job array specification", "array_cap"),
        ("unrecognized option '--mail-tpye=END'", "extra"),
        ("Job violates accounting/QOS policy (job submit limit, user's size)", None),
        ("something else altogether", None),
    ],
)
def test_an_error_of_sbatch_is_about_a_key(said: str, key: str | None) -> None:
    assert blamed_key(said, SiteConfig(gpus=1, account="mine")) == key


def test_without_an_account_the_partition_is_to_blame() -> None:
    said = "Invalid account or account/partition combination specified"
    assert blamed_key(said, SiteConfig(partition="x")) == "partition"


@pytest.mark.parametrize(
    ("said", "passing"),
    [
        ("Unable to contact slurm controller (connect failure)", True),
        ("Socket timed out on send/recv operation", True),
        ("Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("Invalid partition name specified", False),
        ("Job violates accounting/QOS policy", False),
    ],
)
def test_only_what_may_pass_is_waited_for(fake_slurm: FakeSlurm, said: str, passing: bool) -> None:
    fake_slurm.fail("sinfo", f"sinfo: error: {said}")
    with pytest.raises(SlurmError) as error:
        call(["sinfo"])
    assert error.value.passing == passing and error.value.text == said


def test_a_job_that_is_submitted_by_a_job_does_not_get_its_variables(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "7")
    monkeypatch.setenv("OTHER", "kept")
    out = tmp_path / "out"
    call(["sbatch", f"--output={out}", "--wrap", 'echo "$OTHER ${SLURM_RESTART_COUNT:-0} end"'])
    wait_until(lambda: out.exists() and "end" in out.read_text())
    assert out.read_text() == "kept 0 end\n"


def test_limits_come_from_the_cluster_unless_the_site_states_less(fake_slurm: FakeSlurm) -> None:
    fake_slurm.store.set("max_array", 500)
    assert read_limits(SiteConfig()).array == 500
    assert read_limits(SiteConfig(array_cap=50)).array == 50
    assert read_limits(SiteConfig(array_cap=9999)).array == 500
    fake_slurm.fail("scontrol", "scontrol: error: no")
    assert read_limits(SiteConfig()).array == 1001


# ------------------------------------------------------------------- the script and the code


def chunk_of(tmp_path: Path, code: Path | None = None) -> Chunk:
    return Chunk("ab12", "train", str(tmp_path / "my runs"), str(code or tmp_path), (("aa00",),))


def test_a_chunk_is_read_as_it_was_written(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path)
    chunk.write()
    assert read_chunk(chunk.folder) == chunk
    data = {"schema": 1, "later": 1, **vars(chunk)}
    write_json(chunk.folder / "chunk.json", data)
    assert read_chunk(chunk.folder) == chunk  # a key of a later version is passed over


def test_the_script_says_what_the_site_says(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(
        "partition: a,b\naccount: me\nqos: long\ngpus: 2\nmem: 48G\ntime: 1-00:00:00\n"
        "constraint: a100|h100\nexclude: n[1-2]\nreservation: r\ngrace: 90\n"
        "setup: [module load cuda]\nextra: {mail-type: END, exclusive: true, overcommit: false}\n"
    )
    executor = ArrayExecutor(chunk_of(tmp_path), load_site(file), 3, "afterany:7", 4)
    text = executor._make_submission_file_text(executor._submitit_command_str, "")
    for line in (
        "--account=me", "--array=0-0", "--constraint='a100|h100'", "--cpus-per-task=8",
        "--dependency=afterany:7", "--exclude='n[1-2]'", "--exclusive", "--gres=gpu:2",
        "--job-name=sl-ab12", "--mail-type=END", "--mem=48G", "--partition=a,b", "--qos=long",
        "--requeue", "--reservation=r", "--signal=USR2@90", "--time=1440",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text
    assert "overcommit" not in text and "wckey" not in text
    assert "\nmodule load cuda\n" in text
    assert f"'{tmp_path}/my runs/submitted/ab12'" in text  # a folder with a space


def test_the_code_is_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "src"
    for name in snapshot.PACKAGES:
        (packages / name / "__pycache__").mkdir(parents=True)
        (packages / name / "__init__.py").write_text("VALUE = 1\n")
        (packages / name / "__pycache__" / "x.pyc").write_text("")
    monkeypatch.setattr(snapshot, "_folder_of", lambda name: packages / name)
    sweep = SweepFolder(tmp_path / "sweep")
    first = snapshot.take_snapshot(sweep)
    assert snapshot.take_snapshot(sweep) == first
    assert sorted(p.name for p in first.rglob("*.py")) == ["__init__.py"] * 3
    assert not list(first.rglob("*.pyc")) and not list(sweep.code.glob("*.git.json"))
    git = ("git", "-C", str(packages), "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "x")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (packages / "sparrow_lab" / "__init__.py").write_text("VALUE = 2\n")
    second = snapshot.take_snapshot(sweep)
    assert second != first and (first / "sparrow_lab" / "__init__.py").read_text() == "VALUE = 1\n"
    assert "+VALUE = 2" in (sweep.code / f"{second.name}.patch").read_text()


def test_jobs_run_the_code_that_was_submitted(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(Plan("kept", {}, (fakes.make_point("aa00", "where"),)))
    from sparrow_lab.sweep.options import Options
    from sparrow_lab.sweep.slurm.submit import submit

    stages = {"where": "tests.sweep.slurm.odd:where"}
    submit(handed.sweep, handed.site, Options(), handed.said.append, stages)
    assert handed.over() == {"aa00": "done"}
    result = handed.sweep.point("aa00").read_result() or {}
    assert Path(result["code"]).parents[2] == handed.sweep.code.resolve()
    assert result["heavy"] == []


# ------------------------------------------------------------------- counting


def attempts(sweep: SweepFolder, *ends: tuple[str, int, float]) -> None:
    """Attempts with a kind of end, progress, and seconds that they lasted."""
    for kind, done, lasted in ends:
        attempt = sweep.point("aa00").new_attempt({"time": 0.0})
        write_json(attempt.progress_path, {"done": done, "total": 9})
        write_json(attempt.failure_path, {"kind": kind, "message": "", "time": lasted})


LONG, SHORT = 100.0, 1.0


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([("interrupted", 3, LONG)] * 3, False),  # the first of them got somewhere
        ([("interrupted", 3, LONG)] * 4, True),
        ([("interrupted", 0, SHORT)] * 20, False),  # preempted early, and often
        ([("interrupted", i, LONG) for i in range(20)], False),
        ([("interrupted", 3, LONG)] * 3 + [("interrupted", 4, LONG)], False),
        ([("lost", 3, LONG)] * 5, False),
    ],
)
def test_a_point_is_stuck_when_long_jobs_in_a_row_get_no_further(
    tmp_path: Path, ends: list[tuple[str, int, float]], found: bool
) -> None:
    sweep = SweepFolder(tmp_path)
    attempts(sweep, *ends)
    assert stuck(sweep, "aa00", 3, 50.0) == found
    assert not stuck(sweep, "aa00", 0, 50.0)


def test_preemptions_do_not_use_up_retries(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    attempts(sweep, *[("interrupted", 1, SHORT)] * 9, ("error", 1, SHORT))
    assert may_try_again(sweep, "aa00", 0, 0, 1)
    attempts(sweep, ("error", 1, SHORT))
    assert not may_try_again(sweep, "aa00", 0, 0, 1)
    assert may_try_again(sweep, "aa00", 11, 11, 1)


def test_the_breaker_opens_for_good_with_one_success(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    for i in range(3):
        assert not breaker.holds(sweep, "train")
        breaker.note_failure(sweep, "train", f"aa{i}", f"RuntimeError: no file {i}")
    assert "3 points of this stage failed alike: RuntimeError: no file #" in breaker.holds(
        sweep, "train"
    )
    assert not breaker.holds(sweep, "evaluate")
    breaker.forgive(sweep)
    assert not breaker.holds(sweep, "train")
    breaker.note_success(sweep, "train", "aa9")
    for i in range(5):
        breaker.note_failure(sweep, "train", f"aa{i}", "the same")
    assert not breaker.holds(sweep, "train")


def test_alike_failures_take_the_rest_out_of_the_queue(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    """No canary here: the stage has one in the queue already that was cancelled."""
    points = [
        fakes.make_point(f"aa{i:02d}", "train", seed=i, always_fail="train") for i in range(9)
    ]
    handed = hand_in(Plan("alike", {}, tuple(points)))
    fake_slurm.store.set("slots", 1)
    from sparrow_lab.sweep.slurm import todo

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(todo, "need_canary", lambda _: set())
        handed.submit(retries=0)
    states = handed.over()
    assert sorted(states.values()) == ["failed"] * 3 + ["held"] * 6
    assert "3 points of this stage failed alike" in handed.reasons()["aa08"]
    assert not read_queue().elements
    assert sum(bool(handed.sweep.point(p.id).attempts()) for p in points) < 9
