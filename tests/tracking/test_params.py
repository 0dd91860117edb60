"""Names and params of MLflow runs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.tracking.params import MAX_VALUE, Names, flatten, params, short, text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=20,
)


def point(label: dict[str, Any], stage: str = "train", id: str = "ab12") -> PlannedPoint:
    return PlannedPoint(id, stage, {}, label, {"train": {"lr": 1e-5, "betas": [0.9, 0.99]}})


def test_what_differs_leads_a_name() -> None:
    a = point({"model": "tiny-s", "page_size": 8, "tau": 0.86, "seed": 0})
    b = point({"model": "tiny-s", "page_size": 8, "tau": 0.9, "seed": 1})
    names = Names([a, b])
    assert names(a) == "train tau=0.86 seed=0 tiny-s page=8"
    assert names(b) == "train tau=0.9 seed=1 tiny-s page=8"


def test_a_schedule_that_is_no_tau_stands_alone() -> None:
    dense = point({"model": "tiny-s", "tau": "dense"})
    budget = point({"model": "tiny-s", "tau": "budget=64"})
    names = Names([dense, budget])
    assert names(dense) == "train dense tiny-s"
    assert names(budget) == "train budget=64 tiny-s"
    assert Names([])(point({})) == "train ab12"


def test_params_are_flat_and_named_by_path() -> None:
    found = params(point({"tau": 0.86, "seed": 3}))
    assert found["train.lr"] == "1e-05"
    assert found["train.betas"] == "[0.9, 0.99]"
    assert (found["stage"], found["tau"], found["seed"]) == ("train", "0.86", "3")


def test_text_is_as_in_yaml() -> None:
    assert [text(v) for v in (None, True, 1e-5, "NO", 8, {}, [])] == [
        "null",
        "true",
        "1e-05",
        "NO",
        "8",
        "{}",
        "[]",
    ]


def test_a_long_value_keeps_length_and_hash() -> None:
    long = "x" * 9000
    cut = short(long)
    assert len(cut) == MAX_VALUE
    assert "9000 characters" in cut
    assert short("y" * 9000)[-12:] != cut[-12:]


@given(st.dictionaries(st.text(min_size=1), VALUES))
def test_mlflow_takes_every_param(config: dict[str, Any]) -> None:
    from mlflow.utils.validation import _validate_param

    found = params(PlannedPoint("ab12", "train", {}, {}, config))
    for key, value in found.items():
        assert len(value) <= MAX_VALUE
        _validate_param(key, value)


@given(st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True), VALUES))
def test_flatten_loses_no_leaf(config: dict[str, Any]) -> None:
    def leaves(value: Any) -> int:
        if isinstance(value, dict) and value:
            return sum(map(leaves, value.values()))
        return 1

    def plain(value: Any) -> bool:
        """No dotted keys, which could meet a nested one."""
        return not isinstance(value, dict) or all(
            "." not in k and plain(v) for k, v in value.items()
        )

    if plain(config):
        assert len(flatten(config)) == (leaves(config) if config else 0)
