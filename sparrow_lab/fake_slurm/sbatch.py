"""sbatch: takes a script with its options and writes down the job."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparrow_lab.fake_slurm.answer import Answer, Refused, parse_words
from sparrow_lab.fake_slurm.ids import WHOLE, indices
from sparrow_lab.fake_slurm.store import Store, user

SHORT = {
    "J": "job-name", "p": "partition", "A": "account", "q": "qos", "t": "time", "o": "output",
    "e": "error", "d": "dependency", "a": "array", "n": "ntasks", "N": "nodes",
    "c": "cpus-per-task", "D": "chdir", "C": "constraint", "x": "exclude", "w": "nodelist",
    "H": "hold", "b": "begin", "Q": "quiet",
}  # fmt: skip
VALUED = (
    "job-name partition account qos time output error dependency array ntasks nodes cpus-per-task"
    " chdir constraint exclude nodelist begin gres gpus gpus-per-node gpus-per-task cpus-per-gpu"
    " mem mem-per-cpu mem-per-gpu ntasks-per-node signal open-mode export comment reservation"
    " wrap mail-type mail-user wckey nice kill-on-invalid-dep time-min licenses"
)
FLAGS = "parsable requeue no-requeue hold exclusive quiet version help test-only"

_ERROR = "sbatch: error: Batch job submission failed: "
_NO_SCRIPT = (
    "This does not look like a batch script.  The first",
    "line must start with #! followed by the path to an interpreter.",
    "For instance: #!/bin/sh",
)
_GPUS = re.compile(r"gpu(?::[a-zA-Z]\w*)?(?::(\d+))?")


def sbatch(
    store: Store, words: Sequence[str], environment: Mapping[str, str], stdin: str
) -> Answer:
    """Accept a job, or refuse it as Slurm would."""
    options, rest = parse_words("sbatch", words, SHORT, VALUED, FLAGS)
    if "version" in options:
        return Answer("slurm-wlm 22.05.8\n")
    script, command = _script(options, rest, stdin)
    in_script, _ = parse_words("sbatch", _comments(script), SHORT, VALUED, FLAGS)
    options = {**in_script, **options}
    numbers, throttle = _array(store, options.get("array"))
    partition = options.get("partition", store.get("partitions")[0])
    for name in partition.split(","):
        if name not in store.get("partitions"):
            text = f"sbatch: error: invalid partition specified: {name}\n"
            raise Refused(f"{text}{_ERROR}Invalid partition name specified\n")
    gpus = _gpus(options)
    if gpus > store.get("gpus"):
        raise Refused(f"{_ERROR}Requested node configuration is not available\n")
    check_dependency(options.get("dependency", ""))
    if "test-only" in options:
        return Answer(err=f"sbatch: Job {store.get('next_id')} to start at any time\n")
    workdir = Path(options.get("chdir", os.getcwd())).absolute()
    minutes = _minutes(options["time"]) if "time" in options else 60.0
    output = options.get("output") or ("slurm-%A_%a.out" if numbers != [WHOLE] else "slurm-%j.out")
    row = {
        "name": options.get("job-name") or (Path(command).name if command else "wrap"),
        "user": user(),
        "partition": partition,
        "account": options.get("account", "root"),
        "qos": options.get("qos", "normal"),
        "script": script,
        "command": command,
        "workdir": str(workdir),
        "environment": json.dumps({k: v for k, v in environment.items() if k not in ("_", "PWD")}),
        "output": output,
        "error": options.get("error", ""),
        "append": options.get("open-mode") == "append",
        "limit_s": minutes * float(store.get("minute_s")),
        "signal": options.get("signal", ""),
        "requeue": "no-requeue" not in options,
        "throttle": throttle,
        "dependency": options.get("dependency", ""),
        "cpus": int(options.get("cpus-per-task", 1)),
        "gpus": gpus,
        "ntasks": int(options.get("ntasks") or options.get("ntasks-per-node") or 1),
        "comment": options.get("comment", ""),
        "submitted": time.time(),
        "size": len(numbers),
    }
    job = _write(store, row, numbers, held="hold" in options)
    plain = "parsable" in options
    return Answer(f"{job}\n" if plain else f"Submitted batch job {job}\n")


def check_dependency(text: str) -> None:
    """Raises Refused for a dependency that Slurm could not read."""
    for part in filter(None, re.split(r"[,?]", text)):
        kind, *jobs = part.split(":")
        good = kind == "singleton" or (
            kind in ("after", "afterany", "afterok", "afternotok", "aftercorr")
            and jobs
            and all(re.fullmatch(r"\d+(_\d+)?(\+\d+)?", job) for job in jobs)
        )
        if not good:
            raise Refused(f"{_ERROR}Job dependency problem\n")


def _write(store: Store, row: Mapping[str, object], numbers: list[int], held: bool) -> int:
    """Enter the job and its tasks; like Slurm, the last element bears the id of the array."""
    with store.writing():
        job = store.new_ids(len(numbers))
        columns, marks = ", ".join(row), ", ".join("?" * len(row))
        values = (job, *row.values())
        store.run(f"insert into submissions (job, {columns}) values (?, {marks})", *values)
        raws = [*range(job + 1, job + len(numbers)), job]
        reason = "JobHeldUser" if held else ("Dependency" if row["dependency"] else "None")
        store.db.executemany(
            "insert into tasks (job, idx, raw, state, reason, held) values (?, ?, ?, ?, ?, ?)",
            [(job, i, raw, "PENDING", reason, held) for i, raw in zip(numbers, raws, strict=True)],
        )
    return job


def _script(options: Mapping[str, str], rest: Sequence[str], stdin: str) -> tuple[str, str]:
    """The script's text and its path ("" when it has none)."""
    if "wrap" in options:
        return f"#!/bin/sh\n{options['wrap']}\n", ""
    if not rest:
        script, path = stdin, ""
    else:
        path = str(Path(rest[0]).absolute())
        try:
            script = Path(path).read_text()
        except OSError:
            raise Refused(f"sbatch: error: Unable to open file {rest[0]}\n") from None
    if not script.startswith("#!"):
        raise Refused("".join(f"sbatch: error: {line}\n" for line in _NO_SCRIPT))
    return script, path


def _comments(script: str) -> list[str]:
    """The options in `#SBATCH` lines above the first command."""
    words: list[str] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line[len("#SBATCH") :], comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words


def _array(store: Store, text: str | None) -> tuple[list[int], int | None]:
    """The indices and the throttle. Raises Refused for one at or above MaxArraySize."""
    if text is None:
        return [WHOLE], None
    plain, _, throttle = text.partition("%")
    try:
        numbers, limit = indices(plain), int(throttle) if throttle else None
    except ValueError:
        numbers, limit = [], None
    if not numbers or max(numbers) >= store.get("max_array"):
        raise Refused(f"{_ERROR}Invalid job array specification\n")
    return numbers, limit


def _gpus(options: Mapping[str, str]) -> int:
    plain = options.get("gpus-per-node") or options.get("gpus") or options.get("gpus-per-task")
    if plain:
        return int(plain.rpartition(":")[2])
    match = _GPUS.search(options.get("gres", ""))
    return int(match[1] or 1) if match else 0


def _minutes(text: str) -> float:
    """A time limit: minutes, minutes:seconds, hours:minutes:seconds, each with days before."""
    days, dash, clock = text.rpartition("-")
    try:
        parts = [int(part) for part in clock.split(":")]
        if dash:
            hours, minutes, seconds = [*parts, 0, 0][:3]
            return (int(days) * 24 + hours) * 60 + minutes + seconds / 60
    except ValueError:
        raise Refused("sbatch: error: Invalid --time specification\n", 255) from None
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
