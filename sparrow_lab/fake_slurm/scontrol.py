"""scontrol: shows jobs, nodes and the configuration; requeues, holds and releases jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sparrow_lab.fake_slurm import ids, life, sinfo
from sparrow_lab.fake_slurm.answer import Answer, Refused
from sparrow_lab.fake_slurm.store import Store
from sparrow_lab.fake_slurm.table import duration


def scontrol(store: Store, words: Sequence[str]) -> Answer:
    """Do the one thing that the words say."""
    one_line = bool({"-o", "--oneliner"}.intersection(words))
    plain = [word for word in words if not word.startswith("-")]
    if "--version" in words or "-V" in words:
        return Answer("slurm-wlm 22.05.8\n")
    verb, rest = (plain[0], plain[1:]) if plain else ("", [])
    if verb == "show":
        return _show(store, rest, one_line)
    if verb == "ping":
        return Answer("Slurmctld(primary) at fake is UP\n")
    with store.writing():
        if verb in ("requeue", "requeuehold", "hold", "release"):
            return _change(store, verb, rest)
        if verb == "update":
            return _update(store, dict(word.partition("=")[::2] for word in rest))
    raise Refused(f"scontrol: error: this pretended Slurm knows no '{verb}'\n")


def _change(store: Store, verb: str, jobs: Sequence[str]) -> Answer:
    tasks, unknown = ids.select(store, jobs)
    errors = [f"Invalid job id specified for job {job}" for job in unknown]
    for task in tasks:
        if verb.startswith("requeue") and not life.requeue(store, task):
            label = ids.spelled(task["job"], task["idx"])
            errors.append(f"Requested operation is presently disabled for job {label}")
        if verb in ("hold", "requeuehold"):
            _set(store, task, "held = 1, reason = 'JobHeldUser'")
        if verb == "release":
            _set(store, task, "held = 0, reason = 'None'")
    return Answer(err="".join(f"{line}\n" for line in errors), code=1 if errors else 0)


def _update(store: Store, changes: dict[str, str]) -> Answer:
    given = {key.lower(): value for key, value in changes.items()}
    tasks, unknown = ids.select(store, [given.pop("jobid", "")])
    if unknown:
        raise Refused("slurm_update error: Invalid job id specified\n")
    for key, value in given.items():
        columns = {
            "arraytaskthrottle": "throttle",
            "dependency": "dependency",
            "comment": "comment",
        }
        if key not in columns:
            raise Refused(f"scontrol: error: this pretended Slurm cannot update '{key}'\n")
        for job in {task["job"] for task in tasks}:
            store.run(f"update submissions set {columns[key]} = ? where job = ?", value, job)
    return Answer()


def _set(store: Store, task: Any, changes: str) -> None:
    where = "where job = ? and idx = ? and state = 'PENDING'"
    store.run(f"update tasks set {changes} {where}", task["job"], task["idx"])


def _show(store: Store, words: Sequence[str], one_line: bool) -> Answer:
    what, rest = (words[0].lower(), words[1:]) if words else ("", [])
    if what == "config":
        return Answer(_config(store))
    if what.startswith("job"):
        return _jobs(store, rest, one_line)
    if what.startswith("part"):
        names = rest or store.get("partitions")
        return sinfo.partitions(store, names)
    if what.startswith("node"):
        return sinfo.nodes(store)
    raise Refused(f"scontrol: error: this pretended Slurm cannot show '{what}'\n")


def _config(store: Store) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    values = {
        "AccountingStorageType": "accounting_storage/none",
        "ClusterName": "fake",
        "KillWait": f"{int(store.get('kill_wait_s'))} sec",
        "MaxArraySize": store.get("max_array"),
        "PreemptMode": "REQUEUE",
        "SLURM_VERSION": "22.05.8",
    }
    lines = "".join(f"{key:<23} = {value}\n" for key, value in values.items())
    return f"Configuration data as of {now}\n{lines}"


def _jobs(store: Store, words: Sequence[str], one_line: bool) -> Answer:
    tasks, unknown = ids.select(store, words)
    if not words:
        tasks = store.rows("select * from tasks order by job, idx")
    if unknown:
        raise Refused("slurm_load_jobs error: Invalid job id specified\n")
    shown = store.get("shown_states")
    texts = []
    for task in tasks:
        job = store.rows("select * from submissions where job = ?", task["job"])[0]
        item = {**dict(job), **dict(task)}
        item["state"] = shown.get(item["state"], item["state"])
        parts = [f"{key}={value(item)}" for key, value in FIELDS.items()]
        if task["idx"] != ids.WHOLE:
            parts[1:1] = [f"ArrayJobId={task['job']}", f"ArrayTaskId={task['idx']}"]
        texts.append(" ".join(parts) if one_line else "\n   ".join(parts) + "\n")
    return Answer("".join(f"{text}\n" for text in texts))


def _clock(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds)) if seconds else "None"


FIELDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "JobId": lambda x: x["raw"],
    "JobName": lambda x: x["name"],
    "UserId": lambda x: x["user"],
    "Account": lambda x: x["account"],
    "QOS": lambda x: x["qos"],
    "JobState": lambda x: x["state"],
    "Reason": lambda x: x["reason"] if x["state"] == "PENDING" else "None",
    "Dependency": lambda x: x["dependency"] or "(null)",
    "Requeue": lambda x: x["requeue"],
    "Restarts": lambda x: x["restarts"],
    "ExitCode": lambda x: f"{x['code']}:{x['signal']}",
    "TimeLimit": lambda x: duration(x["limit_s"]),
    "SubmitTime": lambda x: _clock(x["submitted"]),
    "StartTime": lambda x: _clock(x["started"]),
    "EndTime": lambda x: _clock(x["ended"] or x["limit_at"]),
    "PreemptTime": lambda x: _clock(x["preempted_at"]),
    "Partition": lambda x: x["partition"],
    "NodeList": lambda x: x["node"],
    "Command": lambda x: x["command"] or "(null)",
    "WorkDir": lambda x: x["workdir"],
    "StdOut": lambda x: x["output"],
    "Comment": lambda x: x["comment"],
}
"""The lines of `scontrol show job` that are printed."""
