"""The cheapest measured schedule that reaches a threshold, and how it is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from sparrow_analysis.answer import answer
from sparrow_analysis.cheapest import choices
from sparrow_analysis.cost import load_shape
from sparrow_analysis.cost_wording import (
    NOTHING,
    cheapest_line,
    cheapest_sentences,
    time_caption,
)
from sparrow_analysis.expense import decode_speedup
from sparrow_analysis.read import read_sweep
from sparrow_analysis.threshold import Threshold
from sparrow_analysis.verdicts import verdicts
from sparrow_analysis.wording import details
from tests.analysis.simulated import World, ladder, step_at, write_sweep

FOUND = Threshold("p05", "threshold", value=0.8, low=0.7, high=0.92)
LEVELS = [
    # page, p5, KV reads, seconds of rollout in 10 steps
    ("tau=0.7", 4, 0.75, 20.0, 1.0),
    ("tau=0.8", 4, 0.85, 40.0, 6.0),
    ("tau=0.8", 8, 0.83, 44.0, 4.0),
    ("tau=0.9", 8, 0.93, 52.0, 5.0),
]


def runs(**changed: object) -> pd.DataFrame:
    """Two seeds a level, and two dense ones that took 2 s for 10 steps."""
    rows = [
        {
            "model": "tiny-s",
            "page_size": page,
            "group": f"tiny-s · page {page}",
            "controls": "tiny-s",
            "level": f"{page}{name}",
            "names": name,
            "dense": False,
            "p05": p05,
            "reads": reads,
            "dense_reads": 80.0,
            "verdict": "collapsed" if p05 == 0.85 and seed else "stable",
            "time_rollout_s": seconds,
        }
        for name, page, p05, reads, seconds in LEVELS
        for seed in (0, 1)
    ]
    dense = {**rows[0], "dense": True, "p05": 1.0, "reads": 80.0, "verdict": "stable"}
    rows += [{**dense, "page_size": None, "level": "dense", "time_rollout_s": 2.0}] * 2
    common = {
        "last_step": 10,
        "eflops": math.nan,
        "dense_eflops": math.nan,
        "speedup": 1.04,
        "hardware": "cpu-2-core",
        "time_train_s": 1.0,
        "time_evaluate_s": math.nan,
    }
    return pd.DataFrame([{**row, **common, **changed} for row in rows])


def test_the_cheapest_schedule_at_and_safely_above_the_threshold() -> None:
    (choice,) = choices(runs(), FOUND)
    assert choice.part == "tiny-s"
    reaching, safe = choice.reaching, choice.safe
    assert reaching is not None and safe is not None
    assert (reaching.page_size, reaching.names, reaching.share) == (4, "tau=0.8", 0.5)
    assert (reaching.runs, reaching.collapsed) == (2, 1)
    assert (reaching.rollout_s, reaching.dense_rollout_s) == (0.6, 0.2)
    assert (safe.page_size, safe.names, safe.share) == (8, "tau=0.9", 0.65)


def test_the_answer_does_not_hold_what_was_timed() -> None:
    told = [
        [c.reaching.to_json() for c in choices(found, FOUND) if c.reaching is not None]
        for found in (runs(), runs().assign(time_rollout_s=9.0))
    ]
    assert told[0] == told[1] and told[0][0]["share"] == 0.5


def test_it_is_told_with_units_and_what_is_modelled() -> None:
    found = choices(runs(), FOUND)
    (line,) = cheapest_sentences(found)
    assert line.startswith(
        "tiny-s: the cheapest measured schedule at or above p5 = 0.80 is page 4, tau=0.8 "
        "(p5 0.850; 1 of 2 runs collapsed). Modelled: 0.50 of dense attention's KV reads (about "
        "40 of 80 tokens in a sparse layer, landmarks counted); decoding 1.04 times as fast as "
        "dense on cpu-2-core, a rough profile. Timed here: rollout 0.6 s a step, dense 0.2 s: "
        "slower. Above the whole interval (p5 = 0.92) it is page 8, tau=0.9"
    )
    assert cheapest_line(found) == (
        "Cheapest measured at or above it (modelled KV reads): tiny-s page 4, tau=0.8, 0.50 of "
        "dense"
    )


def test_edges_of_what_can_be_said() -> None:
    def said(threshold: Threshold) -> str:
        (line,) = cheapest_sentences(choices(runs(speedup=math.nan), threshold))
        return line

    assert "shape is not known" in said(FOUND)
    assert "open above" in said(Threshold("p05", "threshold", value=0.8, high=math.inf))
    assert "No measured schedule lies above" in said(
        Threshold("p05", "threshold", value=0.8, high=0.96)
    )
    assert "Its p5 lies above the whole" in said(
        Threshold("p05", "threshold", value=0.8, high=0.84)
    )
    none = Threshold("p05", "threshold", value=0.95, high=0.97)
    assert said(none) == "tiny-s: no measured schedule reaches p5 = 0.95."
    assert cheapest_line(choices(runs(), none)) == ""
    assert choices(runs(), Threshold("p05", "none", "all_stable")) == ()
    assert cheapest_sentences(()) == [NOTHING]


def test_settings_with_thresholds_of_their_own_have_choices_of_their_own() -> None:
    own = {"tiny-s · page 4": FOUND, "tiny-s · page 8": Threshold("p05", "none", "all_stable")}
    (choice,) = choices(runs(), FOUND, own)
    assert choice.part == "tiny-s · page 4"
    assert choice.reaching is not None and choice.reaching.page_size == 4
    assert choice.safe is None


def test_eflops_are_used_where_all_have_them() -> None:
    priced = runs(dense_eflops=100.0)
    priced["eflops"] = priced["p05"] * 100
    (choice,) = choices(priced, FOUND)
    assert choice.reaching is not None
    assert (choice.reaching.unit, choice.reaching.names) == ("eflops", "tau=0.8")
    assert choice.reaching.page_size == 8
    assert "0.83 of dense attention's eFLOPs a token" in cheapest_sentences((choice,))[0]


def test_the_caption_admits_that_sparse_was_slower() -> None:
    said = time_caption(runs())
    assert "tiny-s: 0.47 s a training step against 0.3 s dense" in said
    assert "Tiny models on a CPU are not faster sparse" in said
    assert "Tiny" not in time_caption(runs(hardware="h200"))
    quicker = runs(controls="tiny-m")
    quicker.loc[~quicker["dense"], "time_rollout_s"] = 0.5
    mixed = time_caption(pd.concat([runs(), quicker]))
    assert "slower: tiny-s" in mixed and "Tiny" not in mixed
    quick = runs()
    quick.loc[~quick["dense"], "time_rollout_s"] = 0.5
    assert "slower" not in time_caption(quick)
    assert time_caption(quick.iloc[:0]).startswith("Wall time")


def test_speedup_of_decoding_is_that_of_the_cost_model() -> None:
    shape = load_shape("qwen3-1.7b")
    assert shape is not None
    long = decode_speedup(shape, [2048], [32768], [1], 16, 2, 32)
    assert 2 < long < 16
    assert decode_speedup(shape, [math.nan], [32768], [1], 16, 2, 32) == 1
    mixed = decode_speedup(shape, [2048, 2048], [1024, 32768], [1, 1], 16, 2, 32)
    assert 1 < mixed < long


def test_a_sweep_has_it_in_its_answer(tmp_path: Path) -> None:
    levels = ladder([0.55, 0.7, 0.8, 0.9, 0.96], page_size=4)
    world = World(levels, step_at(0.86), steps=8, evaluate_every=2)
    sweep = write_sweep(tmp_path, world)
    found = answer(read_sweep(sweep.path))
    (choice,) = found.choices
    assert choice.reaching is not None and choice.reaching.names == "tau=0.9"
    assert 0 < choice.reaching.share < 1 and math.isnan(choice.reaching.speedup)
    assert any(line.startswith("tiny-s: the cheapest measured") for line in details(found))
    # a run keeps the shape of its model, which is all that the speed-up lacks
    final = sweep.point(found.runs["run"].iloc[0]).path / "final"
    final.mkdir()
    sizes = {
        "model_type": "qwen3",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 32,
    }
    (final / "config.json").write_text(json.dumps(sizes))
    modelled = verdicts(read_sweep(sweep.path))
    assert set(modelled["hardware"]) == {"cpu-2-core"}
    assert modelled.loc[~modelled["dense"], "speedup"].gt(1).all()
    assert modelled.loc[modelled["dense"], "speedup"].tolist() == pytest.approx([1.0] * 3)
