"""Checks of a cluster, on a pretended Slurm: the site's lines, limits, and a node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparrow_lab.cli import main
from sparrow_lab.config.site import SiteConfig, load_site
from sparrow_lab.doctor import accepted, cluster, node
from sparrow_lab.doctor.check import Check
from sparrow_lab.doctor.run import examine
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.fake_slurm.handle import BUSY
from sparrow_lab.sweep.slurm.programs import SlurmError

SITE = "partition: main\ngpus: 1\ntime: 60\ngrace: 5\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A pretended cluster that runs nothing: enough for questions."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def all_of(tmp_path: Path, site: Path, wait_s: float = 0) -> dict[str, Check]:
    return {check.name: check for check in examine(tmp_path / "runs", site, wait_s)}


def test_a_good_site(idle: FakeSlurm, tmp_path: Path, site: Path) -> None:
    found = all_of(tmp_path, site)
    bad = {name for name, check in found.items() if check.level == "fail"}
    assert bad == set()
    assert found["job"].found == "partition main, 1 GPUs, 60 min: sbatch would take it"
    assert "no time to save" in found["preemption"].found
    assert idle.tasks() == [] and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("partition: man\ntime: 60\n", 1, "invalid partition specified: man"),
        ("partition: main\ntime: 60\ngpus: 64\n", 3, "Requested node configuration"),
    ],
)
def test_what_sbatch_would_refuse_names_the_line(
    idle: FakeSlurm, tmp_path: Path, site: Path, text: str, line: int, words: str
) -> None:
    site.write_text(text)
    check = all_of(tmp_path, site)["job"]
    assert check.level == "fail" and words in check.found
    assert f"site.yaml:{line}:" in check.remedy


def test_all_that_sbatch_would_refuse_is_found_in_one_run(
    idle: FakeSlurm, tmp_path: Path, site: Path
) -> None:
    site.write_text("partition: man\ntime: 60\nmem: 64G\ngpus: 64\n")
    found = [c for c in examine(tmp_path / "runs", site, 0) if c.name.startswith("job")]
    assert [(c.name, c.level) for c in found] == [("job", "fail"), ("job, besides", "fail")]
    assert "partition: sbatch would refuse it" in found[0].found
    assert "gpus: sbatch would refuse it" in found[1].found
    assert "site.yaml:1:" in found[0].remedy and "site.yaml:4:" in found[1].remedy
    # an error that is about no key, or for ever, ends it
    idle.fail("sbatch", "sbatch: error: the weather", skip=1, times=None)
    found = [c for c in examine(tmp_path / "runs", site, 0) if c.name.startswith("job")]
    assert len(found) == 1 and "the weather" in found[0].found


def test_what_no_node_has_is_found_by_leaving_it_out(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm says the same of too many GPUs and of too much memory."""

    def refused(asked: SiteConfig, scratch: Path) -> SlurmError | None:
        text = "Requested node configuration is not available"
        return SlurmError("sbatch", text, False) if asked.mem == "9T" else None

    monkeypatch.setattr(accepted, "_refused", refused)
    site.write_text(SITE + "mem: 9T\n")
    (check,) = accepted.check_accepted(load_site(site), tmp_path)
    assert check.found.startswith("mem: ") and "site.yaml:5:6" in check.remedy


def test_a_site_file_with_a_mistake(idle: FakeSlurm, tmp_path: Path, site: Path) -> None:
    site.write_text("partion: main\n")
    check = all_of(tmp_path, site)["site file"]
    assert check.level == "fail" and "site.yaml:1:1" in check.found and "partition" in check.found


def test_without_slurm(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = all_of(tmp_path, site)
    assert found["slurm"].level == "fail" and "sbatch" in found["slurm"].found
    assert "job" not in found


def test_a_controller_that_does_not_answer(idle: FakeSlurm, tmp_path: Path, site: Path) -> None:
    idle.fail("squeue", BUSY, times=None)
    found = all_of(tmp_path, site)
    assert found["queue"].level == "fail" and "Socket timed out" in found["queue"].found


def test_without_accounting(idle: FakeSlurm, tmp_path: Path, site: Path) -> None:
    idle.no_accounting()
    check = all_of(tmp_path, site)["accounting"]
    assert check.level == "warn" and "nothing needs it" in check.remedy


def test_an_array_cap_above_the_clusters(idle: FakeSlurm, site: Path) -> None:
    site.write_text(SITE + "array_cap: 5000\n")
    check = cluster.check_arrays(load_site(site))
    assert check.level == "warn" and "allows 1001" in check.found


PARTITION = "PartitionName=gpu\n   MaxTime={time} State=UP GraceTime={grace} PreemptMode={mode}\n"


@pytest.mark.parametrize(
    ("time", "grace", "mode", "name", "level", "words"),
    [
        ("1-00:00:00", 30, "REQUEUE", "preemption", "ok", "30 s and USR2 before the end"),
        ("00:30:00", 30, "REQUEUE", "time limit", "fail", "60 min are asked for, 30 are"),
        ("UNLIMITED", 2, "REQUEUE", "preemption", "warn", "gives 2 s, the site file asks for 5"),
        ("UNLIMITED", 0, "REQUEUE", "preemption", "warn", "no time to save"),
        ("UNLIMITED", 30, "CANCEL", "preemption", "warn", "cancelled for good"),
        ("UNLIMITED", 0, "OFF", "preemption", "ok", "not preempted"),
    ],
)
def test_partitions(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    time: str,
    grace: int,
    mode: str,
    name: str,
    level: str,
    words: str,
) -> None:
    def ask(command: list[str]) -> str:
        if command[2] == "config":
            return "SlurmctldParameters     = preempt_send_user_signal\n"
        return PARTITION.format(time=time, grace=grace, mode=mode)

    monkeypatch.setattr(cluster, "_ask", ask)
    found = {c.name: c for c in cluster.check_partition(load_site(site))}
    assert (found[name].level, words in found[name].found) == (level, True), found[name]


@pytest.mark.slow
def test_a_node_is_looked_at(fake_slurm: FakeSlurm, tmp_path: Path, site: Path) -> None:
    site.write_text(SITE + f"cache: {tmp_path}\n")
    found = all_of(tmp_path, site, 60)
    assert found["node's python"].level == "ok"
    assert found["node's clock"].level == "ok"
    assert found["node's cache"].found.startswith(str(tmp_path))
    assert "node's sbatch" not in found
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_node_on_which_the_job_fails(fake_slurm: FakeSlurm, tmp_path: Path, site: Path) -> None:
    site.write_text(SITE + "setup: [echo no module named cuda, exit 3]\n")
    check = all_of(tmp_path, site, 60)["node"]
    assert check.level == "fail" and "no module named cuda" in check.found


def test_a_line_of_the_setup_that_fails_is_shown(tmp_path: Path, site: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("a greeting\n/scripts/7.sh: line 9: module: command not found\n")
    assert node.judge_log(log, load_site(site)) == []
    site.write_text(SITE + "setup: [module load cuda]\n")
    (check,) = node.judge_log(log, load_site(site))
    assert check.level == "warn" and "module: command not found" in check.found
    assert "site.yaml:5:" in check.remedy
    log.write_text("a greeting\n")
    assert node.judge_log(log, load_site(site)) == []


@pytest.mark.slow
def test_no_node_is_free(idle: FakeSlurm, tmp_path: Path, site: Path) -> None:
    check = all_of(tmp_path, site, 1)["node"]
    assert check.level == "warn" and "no node began" in check.found
    assert set(idle.states().values()) == {"CANCELLED"}


SEEN = {
    "host": "n1",
    "python": [3, 11, 2],
    "executable": "/usr/bin/python",
    "skew": 0.0,
    "cuda": "12.8",
    "driver": "570.1",
    "sbatch": True,
    "cache": "/tmp",
    "cache_kind": None,
    "cache_there": True,
}


@pytest.mark.parametrize(
    ("change", "name", "level", "words"),
    [
        ({}, "node's driver", "ok", "n1: driver 570.1"),
        ({"python": [3, 9, 1]}, "node's python", "fail", "Python 3.9.1 at /usr/bin/python, but"),
        ({"driver": "470.1"}, "node's driver", "fail", "too old"),
        ({"driver": None}, "node's driver", "warn", "shows no GPU"),
        ({"skew": 60.0}, "node's clock", "warn", "differ by 60 s"),
        ({"cache_kind": "nfs4"}, "node's cache", "fail", "network file system (nfs4)"),
        ({"cache_there": False}, "node's cache", "fail", "cannot be written on n1"),
        ({"sbatch": False}, "node's sbatch", "warn", "cannot go on by themselves"),
    ],
)
def test_what_a_node_saw(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    name: str,
    level: str,
    words: str,
) -> None:
    monkeypatch.setattr(node.sys, "version_info", (3, 11, 7))
    found = {c.name: c for c in node.judge_node({**SEEN, **change}, load_site(site))}
    assert (found[name].level, words in found[name].found) == (level, True), found[name]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *arguments])
        return int(ended.value.code or 0)

    assert call("--runs", str(tmp_path / "runs")) == 0
    said = capsys.readouterr().out
    assert "ok   python: " in said and "0 failed" in said
    (tmp_path / "file").write_text("")
    assert call("--runs", str(tmp_path / "file" / "x")) == 1
    assert "fail runs folder: " in capsys.readouterr().out
    assert call("--json", "--runs", str(tmp_path)) == 0
    assert {c["name"] for c in json.loads(capsys.readouterr().out)} >= {"python", "clock"}
    assert os.listdir(tmp_path) == ["file"]
