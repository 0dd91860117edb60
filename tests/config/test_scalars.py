"""YAML 1.2's scalars, and the traps that stay text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.config.scalars import hint, resolve


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "1e-05", "1E-5", "0.00001", ".00001"])
def test_every_way_to_write_a_small_float_is_the_same_float(text: str) -> None:
    value = resolve(text)
    assert isinstance(value, float)
    assert value == 1e-5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-3", -3),
        ("+4", 4),
        ("0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_core_schema(text: str, value: object) -> None:
    found = resolve(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["NO", "no", "on", "off", "yes", "y", "010", "-007", "12:30:00", "1_000", "0b11", "1e", "1.2.3"]
    + ["2026-11-30", "e5", ".", "-", "+", "0x", "1 000", "١٢"],
)
def test_traps_stay_text(text: str) -> None:
    assert resolve(text) == text


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", ".NaN", "1e400", "-1e999", "9" * 5000])
def test_numbers_that_no_field_takes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"finite|digits"):
        resolve(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back_as_itself(value: float) -> None:
    found = resolve(repr(value))
    assert isinstance(found, float)
    assert found == value
    assert math.copysign(1, found) == math.copysign(1, value)


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_every_whole_number_reads_back_as_itself(value: int) -> None:
    assert resolve(str(value)) == value


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("010", "seed", "write 10"),
        ("12:30:00", "timeout_min", "in minutes this is 750"),
        ("12:30:00", "steps", "one number"),
        ("1_000", "steps", "write 1000"),
        ("yes", "advantage_std", "true and false"),
        ("3", "seed", "remove the quotes"),
        ("fast", "lr", ""),
    ],
)
def test_a_hint_says_what_to_write(text: str, key: str, words: str) -> None:
    advice = hint(text, key)
    assert words in advice
    assert bool(advice) == bool(words)
