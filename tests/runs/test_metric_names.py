"""Metric names: ours are accepted, and nothing is that MLflow would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.metric_names import check

OURS = ["acceptance/p05", "acceptance/bin_8192/p05", "reward/mean", "time/step_s", "a b:c-d.e_f"]


@pytest.mark.parametrize("name", OURS)
def test_our_names_pass(name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    "name", ["", "a(b)", "p=5", "ü", "a//b", "/a", "a/", "../a", "a/../b", "./a", ".", "x" * 251]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="metric name"):
        check(name)


@given(st.text(alphabet="aZ0_-. :/\\(é", max_size=12))
def test_what_passes_here_passes_in_mlflow(name: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric_name

    def refused(validate: object) -> bool:
        try:
            validate(name)  # type: ignore[operator]
        except (ValueError, MlflowException):
            return True
        return False

    assert refused(check) or not refused(_validate_metric_name)
