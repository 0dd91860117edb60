"""squeue: the jobs that wait and run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparrow_lab.fake_slurm import ids
from sparrow_lab.fake_slurm.answer import Answer, Refused, parse_words
from sparrow_lab.fake_slurm.store import Store, user
from sparrow_lab.fake_slurm.table import Field, duration, printed

SHORT = {
    "h": "noheader", "r": "array", "u": "user", "j": "jobs", "n": "name", "t": "states",
    "o": "format", "p": "partition", "A": "account", "V": "version",
}  # fmt: skip
VALUED = "user jobs name states format partition account sort qos nodelist"
FLAGS = "noheader array me version all"
PLAIN = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"


def squeue(store: Store, words: Sequence[str]) -> Answer:
    """Print the queue; elements of an array that wait share a line without `--array`."""
    options, _ = parse_words("squeue", words, SHORT, VALUED, FLAGS)
    if "version" in options:
        return Answer("slurm-wlm 22.05.8\n")
    if "jobs" in options:
        known, unknown = ids.select(store, [options["jobs"]])
        if unknown and not known:
            raise Refused("slurm_load_jobs error: Invalid job id specified\n")
        wanted = {(t["job"], t["idx"]) for t in known}
    states = _states(options.get("states"))
    marks = ", ".join("?" * len(states))
    sql = f"select * from tasks where state in ({marks}) order by job, idx"
    jobs: dict[int, dict[str, Any]] = {}
    for row in store.rows("select * from submissions"):
        data = dict(row)
        del data["script"], data["environment"], data["signal"]
        jobs[row["job"]] = data
    shown = store.get("shown_states")
    now = time.time()
    items = []
    for task in store.rows(sql, *states):
        if "jobs" in options and (task["job"], task["idx"]) not in wanted:
            continue
        item = {**jobs[task["job"]], **dict(task), "now": now}
        if _chosen(item, options):
            item["label"] = ids.spelled(item["job"], item["idx"])
            item["indices"] = "N/A" if item["idx"] == ids.WHOLE else item["idx"]
            item["state"] = shown.get(item["state"], item["state"])
            items.append(item)
    if "array" not in options:
        items = _folded(items)
    return Answer(printed(items, options.get("format", PLAIN), FIELDS, "noheader" not in options))


def _chosen(item: Mapping[str, Any], options: Mapping[str, str]) -> bool:
    users = options.get("user", user() if "me" in options else "").split(",")
    if users != [""] and item["user"] not in users:
        return False
    keys = {"name": "name", "partition": "partition", "account": "account", "qos": "qos"}
    return all(item[k] in options[o].split(",") for o, k in keys.items() if o in options)


def _states(text: str | None) -> list[str]:
    """The states asked for, by their long or short names."""
    if text is None:
        return list(ids.ACTIVE)
    if text.lower() == "all":
        return list(ids.COMPACT)
    long = {short: name for name, short in ids.COMPACT.items()}
    return [long.get(name.upper(), name.upper()) for name in text.split(",")]


def _folded(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Elements that wait and have never run share a line of their array."""
    lines: list[dict[str, Any]] = []
    waiting: dict[int, list[int]] = {}
    for item in items:
        if item["idx"] == ids.WHOLE or item["state"] != "PENDING" or item["restarts"]:
            lines.append(item)
            continue
        if item["job"] not in waiting:
            lines.append(item)
        waiting.setdefault(item["job"], []).append(item["idx"])
    for line in lines:
        if line["job"] in waiting and line["idx"] == waiting[line["job"]][0]:
            limit = f"%{line['throttle']}" if line["throttle"] else ""
            line["indices"] = f"{ids.ranges(waiting[line['job']])}{limit}"
            line["label"] = f"{line['job']}_[{line['indices']}]"
    return lines


def _own_id(item: Mapping[str, Any]) -> int:
    """An element has an id of its own once it has started."""
    first = item["state"] == "PENDING" and not item["restarts"]
    return int(item["job"] if first else item["raw"])


def _reason(item: Mapping[str, Any]) -> str:
    return str(item["reason"]) if item["state"] == "PENDING" else "None"


def _place(item: Mapping[str, Any]) -> str:
    return f"({item['reason']})" if item["state"] == "PENDING" else str(item["node"])


def _elapsed(item: Mapping[str, Any]) -> str:
    started = item["started"]
    return duration((item["ended"] or item["now"]) - started) if started else "0:00"


def _clock(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds)) if seconds else "N/A"


FIELDS: dict[str, Field] = {
    "i": ("JOBID", lambda x: x["label"]),
    "A": ("JOBID", _own_id),
    "F": ("ARRAY_JOB_ID", lambda x: x["job"]),
    "K": ("ARRAY_TASK_ID", lambda x: x["indices"]),
    "j": ("NAME", lambda x: x["name"]),
    "T": ("STATE", lambda x: x["state"]),
    "t": ("ST", lambda x: ids.COMPACT.get(x["state"], x["state"][:2])),
    "r": ("REASON", _reason),
    "R": ("NODELIST(REASON)", _place),
    "N": ("NODELIST", lambda x: "" if x["state"] == "PENDING" else x["node"]),
    "D": ("NODES", lambda _: 1),
    "u": ("USER", lambda x: x["user"]),
    "P": ("PARTITION", lambda x: x["partition"]),
    "a": ("ACCOUNT", lambda x: x["account"]),
    "q": ("QOS", lambda x: x["qos"]),
    "M": ("TIME", _elapsed),
    "l": ("TIME_LIMIT", lambda x: duration(x["limit_s"])),
    "V": ("SUBMIT_TIME", lambda x: _clock(x["submitted"])),
    "S": ("START_TIME", lambda x: _clock(x["started"])),
    "E": ("DEPENDENCY", lambda x: x["dependency"] or "(null)"),
    "k": ("COMMENT", lambda x: x["comment"] or "(null)"),
    "o": ("COMMAND", lambda x: x["command"]),
    "Z": ("WORK_DIR", lambda x: x["workdir"]),
}
"""The letters of `--format` that are understood."""
