"""sinfo, and what scontrol shows of partitions and nodes: all of them are up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparrow_lab.fake_slurm.answer import Answer, Refused, parse_words
from sparrow_lab.fake_slurm.store import Store
from sparrow_lab.fake_slurm.table import Field, printed

SHORT = {"h": "noheader", "N": "Node", "o": "format", "p": "partition", "V": "version", "l": "long"}
PLAIN = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo(store: Store, words: Sequence[str]) -> Answer:
    """Print the partitions, or with --Node a line for each node in each."""
    options, _ = parse_words(
        "sinfo", words, SHORT, "format partition", "noheader Node version long"
    )
    if "version" in options:
        return Answer("slurm-wlm 22.05.8\n")
    names: list[str] = store.get("partitions")
    count: int = store.get("nodes")
    each = [f"n{i}" for i in range(1, count + 1)]
    all_nodes = f"n[1-{count}]" if count > 1 else "n1"
    wanted = options["partition"].split(",") if "partition" in options else names
    items: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        if name not in wanted:
            continue
        item = {"name": name, "default": i == 0, "gpus": store.get("gpus")}
        if "Node" in options:
            items += [{**item, "nodes": node, "count": 1} for node in each]
        else:
            items.append({**item, "nodes": all_nodes, "count": count})
    heading = "noheader" not in options
    return Answer(printed(items, options.get("format", PLAIN), FIELDS, heading))


def partitions(store: Store, names: Sequence[str]) -> Answer:
    """`scontrol show partition`."""
    known = store.get("partitions")
    for name in names:
        if name not in known:
            raise Refused(
                f"slurm_load_partitions error: Invalid partition name specified\n{name}\n"
            )
    lines = [f"PartitionName={n}\n   MaxTime=UNLIMITED State=UP GraceTime=0\n" for n in names]
    return Answer("\n".join(lines))


def nodes(store: Store) -> Answer:
    """`scontrol show node`."""
    names = [f"n{i}" for i in range(1, store.get("nodes") + 1)]
    lines = [f"NodeName={name} State=IDLE Gres=gpu:{store.get('gpus')}\n" for name in names]
    return Answer("\n".join(lines))


FIELDS: dict[str, Field] = {
    "P": ("PARTITION", lambda x: x["name"] + ("*" if x["default"] else "")),
    "R": ("PARTITION", lambda x: x["name"]),
    "a": ("AVAIL", lambda _: "up"),
    "l": ("TIMELIMIT", lambda _: "infinite"),
    "D": ("NODES", lambda x: x["count"]),
    "t": ("STATE", lambda _: "idle"),
    "T": ("STATE", lambda _: "idle"),
    "N": ("NODELIST", lambda x: x["nodes"]),
    "G": ("GRES", lambda x: f"gpu:{x['gpus']}"),
    "c": ("CPUS", lambda _: 8),
    "m": ("MEMORY", lambda _: 16384),
}
"""The letters of `--format` that are understood."""
