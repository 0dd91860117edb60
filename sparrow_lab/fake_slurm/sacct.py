"""sacct: what is remembered of jobs, also of those that have left the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparrow_lab.fake_slurm import ids
from sparrow_lab.fake_slurm.answer import Answer, Refused, parse_words
from sparrow_lab.fake_slurm.store import Store, user
from sparrow_lab.fake_slurm.table import duration

SHORT = {
    "j": "jobs", "o": "format", "n": "noheader", "P": "parsable2", "p": "parsable",
    "X": "allocations", "u": "user", "S": "starttime", "E": "endtime", "s": "state",
    "a": "allusers",
}  # fmt: skip
VALUED = "jobs format user name starttime endtime state delimiter"
FLAGS = "noheader parsable2 parsable allocations allusers array duplicates"
PLAIN = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


def sacct(store: Store, words: Sequence[str]) -> Answer:
    """Print the jobs asked for, with a line for the script of each that has started."""
    options, _ = parse_words("sacct", words, SHORT, VALUED, FLAGS)
    wanted = options.get("format", PLAIN).split(",")
    columns = [name.partition("%")[0].lower() for name in wanted]
    for name in columns:
        if name not in FIELDS:
            raise Refused(f'sacct: fatal: Invalid field requested: "{name}"\n')
    items = _items(store, options)
    lines = []
    for item in items if "array" in options else _folded(items):
        lines.append([str(FIELDS[name](item)) for name in columns])
        if "allocations" not in options and item["started"]:
            script = {**item, "label": f"{item['label']}.batch", "name": "batch"}
            lines.append([str(FIELDS[name](script)) for name in columns])
    if "noheader" not in options:
        lines.insert(0, [name.partition("%")[0] for name in wanted])
    between = options.get("delimiter", "|")
    if "parsable2" in options:
        return Answer("".join(f"{between.join(line)}\n" for line in lines))
    if "parsable" in options:
        return Answer("".join(f"{between.join([*line, ''])}\n" for line in lines))
    return Answer("".join(" ".join(cell[:12].ljust(12) for cell in line) + "\n" for line in lines))


def _items(store: Store, options: Mapping[str, str]) -> list[dict[str, Any]]:
    if "jobs" in options:
        tasks, _ = ids.select(store, [options["jobs"]])
    else:
        tasks = store.rows("select * from tasks order by job, idx")
    jobs = {
        row["job"]: dict(row)
        for row in store.rows(
            "select job, name, user, partition, account, qos, cpus, submitted, limit_s, throttle"
            " from submissions"
        )
    }
    owner = options.get("user", user())
    items = [{**jobs[task["job"]], **dict(task), "now": time.time()} for task in tasks]
    if "allusers" not in options:
        items = [item for item in items if item["user"] == owner]
    if "name" in options:
        items = [item for item in items if item["name"] in options["name"].split(",")]
    for item in items:
        item["label"] = ids.spelled(item["job"], item["idx"])
    return items


def _folded(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Elements that have not started share one line of their array."""
    lines: list[dict[str, Any]] = []
    waiting: dict[int, list[int]] = {}
    for item in items:
        unseen = item["idx"] != ids.WHOLE and item["state"] == "PENDING" and not item["started"]
        if not unseen or item["job"] not in waiting:
            lines.append(item)
        if unseen:
            waiting.setdefault(item["job"], []).append(item["idx"])
    for line in lines:
        if line["idx"] in waiting.get(line["job"], [])[:1]:
            limit = f"%{line['throttle']}" if line["throttle"] else ""
            line["label"] = f"{line['job']}_[{ids.ranges(waiting[line['job']])}{limit}]"
    return lines


def _state(item: Mapping[str, Any]) -> str:
    if item["state"] == "CANCELLED":
        return "CANCELLED by 0"
    return "RUNNING" if item["state"] == "COMPLETING" else str(item["state"])


def _elapsed(item: Mapping[str, Any]) -> str:
    seconds = (item["ended"] or item["now"]) - item["started"] if item["started"] else 0
    return duration(seconds).rjust(8, "0")


def _clock(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds)) if seconds else "Unknown"


FIELDS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "jobid": lambda x: x["label"],
    "jobidraw": lambda x: x["raw"],
    "jobname": lambda x: x["name"],
    "user": lambda x: x["user"],
    "partition": lambda x: x["partition"],
    "account": lambda x: x["account"],
    "qos": lambda x: x["qos"],
    "alloccpus": lambda x: x["cpus"],
    "state": _state,
    "exitcode": lambda x: f"{x['code']}:{x['signal']}",
    "derivedexitcode": lambda x: f"{x['code']}:{x['signal']}",
    "nodelist": lambda x: x["node"] or "None assigned",
    "submit": lambda x: _clock(x["submitted"]),
    "start": lambda x: _clock(x["started"]),
    "end": lambda x: _clock(x["ended"]),
    "elapsed": _elapsed,
    "timelimit": lambda x: duration(x["limit_s"]),
    "reason": lambda x: x["reason"],
    "maxrss": lambda _: "",
    "restarts": lambda x: x["restarts"],
}
"""The fields of `--format` that are understood, in small letters."""
