"""scancel: takes jobs out of the queue, or sends them a signal."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow_lab.fake_slurm import ids, life, processes
from sparrow_lab.fake_slurm.answer import Answer, Refused, parse_words
from sparrow_lab.fake_slurm.store import Store, user

SHORT = {
    "u": "user", "n": "name", "s": "signal", "t": "state", "p": "partition", "b": "batch",
    "f": "full", "Q": "quiet", "q": "qos",
}  # fmt: skip
VALUED = "user name signal state partition jobname account qos"
FLAGS = "batch full quiet me verbose hurry"


def scancel(store: Store, words: Sequence[str]) -> Answer:
    """Cancel what the ids and options name together; ended and unknown ones are passed over."""
    options, jobs = parse_words("scancel", words, SHORT, VALUED, FLAGS)
    if not jobs and not options.keys() & {"user", "me", "name", "jobname", "state", "partition"}:
        raise Refused("scancel: error: No job identification provided\n")
    tasks, _ = ids.select(store, jobs)
    if not jobs:
        tasks = store.rows("select * from tasks order by job, idx")
    owners = {
        row["job"]: row for row in store.rows("select job, user, name, partition from submissions")
    }
    owner = options.get("user", user() if "me" in options else None)
    name = options.get("name", options.get("jobname"))
    states = options.get("state", "").upper()
    with store.writing():
        for task in tasks:
            job = owners[task["job"]]
            if (
                task["state"] not in ids.ACTIVE
                or (owner is not None and job["user"] != owner)
                or (name is not None and job["name"] != name)
                or job["partition"] != options.get("partition", job["partition"])
                or (states and task["state"] not in states.split(","))
            ):
                continue
            if "signal" in options and options["signal"].upper().removeprefix("SIG") != "KILL":
                _signal(store, task["job"], task["idx"], options)
            else:
                life.end(store, task, "cancel")
    return Answer()


def _signal(store: Store, job: int, index: int, options: dict[str, str]) -> None:
    """The steps get a signal, the script only with --batch (it alone) or --full (both)."""
    try:
        number = life.signal_number(options["signal"])
    except ValueError:
        raise Refused(f"scancel: error: Unknown job signal: {options['signal']}\n") from None
    task = store.rows("select * from tasks where job = ? and idx = ?", job, index)[0]
    alone, both = "batch" in options, "full" in options
    processes.send(store.folder, task, number, steps=not alone, shell=alone or both)
