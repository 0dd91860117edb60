"""Runs the jobs as processes of this machine: what slurmctld and slurmd do on a cluster."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import IO

from sparrow_lab.fake_slurm import dependencies, ids, life, processes
from sparrow_lab.fake_slurm.store import Store

TICK_S = 0.03


class Controller:
    """Looks at the jobs again and again; `turn` is one look."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.running: dict[tuple[int, int, int], subprocess.Popen[bytes]] = {}
        (self.store.folder / "scripts").mkdir(exist_ok=True)

    def run(self) -> None:
        """Until SIGTERM; the jobs are then left to whoever stops the controller.

        When whoever started it has died without a word, it ends them itself.
        """
        stop: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
        parent = os.getppid()
        while not stop and os.getppid() == parent:
            self.turn()
            time.sleep(TICK_S)
        if not stop:
            processes.kill_everything(self.store.folder)

    def turn(self) -> None:
        """Take in what has ended, end what is to end, start what may start."""
        ended = {key: job for key, job in self.running.items() if job.poll() is not None}
        with self.store.writing():
            for key, process in ended.items():
                if self._ended(key, process.returncode):
                    del self.running[key]
            for task in self.store.rows("select * from tasks where pid is not null"):
                self._keep_time(task)
            self._start_what_may()

    # ------------------------------------------------------------------ ending

    def _ended(self, key: tuple[int, int, int], code: int) -> bool:
        """Take in that a script has ended; False while something of a job that is to go lives."""
        sql = "select * from tasks where job = ? and idx = ?"
        task = self.store.rows(sql, *key[:2])[0]
        if task["restarts"] != key[2] or task["state"] not in ("RUNNING", "COMPLETING"):
            return True  # the process of a lost node: nobody asks for it any more
        leaving = task["state"] == "COMPLETING" and time.time() < task["kill_at"]
        if leaving and processes.send(self.store.folder, task, 0):
            return False
        # whatever the script has left behind ends with it
        processes.send(self.store.folder, task, signal.SIGKILL)
        life.over(self.store, task, task["ending"], code)
        return True

    def _keep_time(self, task: sqlite3.Row) -> None:
        now = time.time()
        if task["kill_at"] and now >= task["kill_at"]:
            processes.send(self.store.folder, task, signal.SIGKILL)
        elif task["state"] == "RUNNING" and task["end_at"] and now >= task["end_at"]:
            life.end(self.store, task, "evict" if task["evicted"] else "preempt")
        elif task["limit_at"] and task["state"] == "RUNNING":
            left = task["limit_at"] - now
            sql = "select signal from submissions where job = ?"
            before = life.warning_time(self.store.rows(sql, task["job"])[0]["signal"])
            if left <= 0:
                life.end(self.store, task, "timeout")
            elif before is not None and left <= before and not task["warned"]:
                sql = "update tasks set warned = 1 where job = ? and idx = ?"
                self.store.run(sql, task["job"], task["idx"])
                life.warn(self.store, task)

    # ------------------------------------------------------------------ starting

    def _start_what_may(self) -> None:
        rows = self.store.rows(
            "select job, idx from tasks where state in ('RUNNING', 'COMPLETING')"
        )
        free = self.store.get("slots") - len(rows)
        busy: dict[int, int] = {}
        for row in rows:
            busy[row["job"]] = busy.get(row["job"], 0) + 1
        waiting = self.store.rows("select distinct job from tasks where state = 'PENDING'")
        for row in waiting:
            job = self.store.rows("select * from submissions where job = ?", row["job"])[0]
            free -= self._start_some(job, free, busy.get(row["job"], 0))

    def _start_some(self, job: sqlite3.Row, free: int, busy: int) -> int:
        """Start elements of a job while there is room; how many."""
        limit = free if job["throttle"] is None else min(free, job["throttle"] - busy)
        started = 0
        each = "aftercorr" in job["dependency"]
        shared = None if each else dependencies.verdict(self.store, job, ids.WHOLE)
        if shared in ("not yet", "never"):
            reason = "Dependency" if shared == "not yet" else "DependencyNeverSatisfied"
            self._give_reason(job["job"], reason)
            return 0
        sql = "select * from tasks where job = ? and state = 'PENDING' and not held and begin <= ?"
        for task in self.store.rows(f"{sql} order by idx", job["job"], time.time()):
            if started >= limit:
                full = job["throttle"] is not None and busy + started >= job["throttle"]
                self._give_reason(job["job"], "JobArrayTaskLimit" if full else "Resources")
                break
            if each and dependencies.verdict(self.store, job, task["idx"]) != "yes":
                continue
            self._start(job, task, node=f"n{(busy + started) % self.store.get('nodes') + 1}")
            started += 1
        return started

    def _give_reason(self, job: int, reason: str) -> None:
        sql = "update tasks set reason = ? where job = ? and state = 'PENDING' and not held"
        self.store.run(f"{sql} and begin <= ? and reason != ?", reason, job, time.time(), reason)

    def _start(self, job: sqlite3.Row, task: sqlite3.Row, node: str) -> None:
        now = time.time()
        script = self.store.folder / "scripts" / f"{job['job']}.sh"
        if not script.exists():
            script.write_text(job["script"])
            script.chmod(0o755)
        mode = "ab" if job["append"] else "wb"
        code: int | None = None
        try:
            out = _open(job, task, node, job["output"], mode)
            err = _open(job, task, node, job["error"], mode) if job["error"] else out
            with out, err:
                process = subprocess.Popen(
                    [str(script)],
                    cwd=job["workdir"],
                    env=self._environment(job, task, node),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            self.running[job["job"], task["idx"], task["restarts"]] = process
        except OSError:
            code = -53  # as Slurm: no folder for the output, and no word on it anywhere
        self.store.run(
            "update tasks set state = 'RUNNING', reason = 'None', node = ?, pid = ?, started = ?,"
            " limit_at = ? where job = ? and idx = ?",
            node, process.pid if code is None else None, now, now + job["limit_s"],
            job["job"], task["idx"],
        )  # fmt: skip
        if code is not None:
            life.over(self.store, task, "", code)

    def _environment(self, job: sqlite3.Row, task: sqlite3.Row, node: str) -> dict[str, str]:
        """What sbatch saw, and what Slurm adds."""
        own = {
            "SLURM_JOB_ID": task["raw"],
            "SLURM_JOBID": task["raw"],
            "SLURM_JOB_NAME": job["name"],
            "SLURM_JOB_PARTITION": job["partition"],
            "SLURM_JOB_NODELIST": node,
            "SLURM_JOB_NUM_NODES": 1,
            "SLURM_NNODES": 1,
            "SLURM_NODEID": 0,
            "SLURM_NTASKS": job["ntasks"],
            "SLURM_PROCID": 0,
            "SLURM_LOCALID": 0,
            "SLURM_CPUS_PER_TASK": job["cpus"],
            "SLURM_CLUSTER_NAME": "fake",
            "SLURM_SUBMIT_DIR": job["workdir"],
            "SLURMD_NODENAME": node,
            processes.MARK: processes.mark(self.store.folder, task),
        }
        if task["idx"] != ids.WHOLE:
            own["SLURM_ARRAY_JOB_ID"] = job["job"]
            own["SLURM_ARRAY_TASK_ID"] = task["idx"]
            own["SLURM_ARRAY_TASK_COUNT"] = job["size"]
        if task["restarts"]:
            own["SLURM_RESTART_COUNT"] = task["restarts"]
        if job["append"]:
            own["SLURM_OPEN_MODE"] = "a"
        if job["gpus"]:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(job["gpus"])))
        given: dict[str, str] = json.loads(job["environment"])
        kept = {k: v for k, v in given.items() if not k.startswith(("SLURM_", processes.MARK))}
        return {**kept, **{key: str(value) for key, value in own.items()}}


def _open(job: sqlite3.Row, task: sqlite3.Row, node: str, pattern: str, mode: str) -> IO[bytes]:
    values: dict[str, object] = {
        "A": job["job"], "a": task["idx"], "j": task["raw"], "J": task["raw"], "x": job["name"],
        "N": node, "n": 0, "t": 0, "u": job["user"], "%": "%",
    }  # fmt: skip
    return open(os.path.join(job["workdir"], processes.filled(pattern, values)), mode)
