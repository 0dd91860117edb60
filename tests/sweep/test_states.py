"""The state of a point is true at any moment that it is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.runs.process import this_process
from sparrow_lab.sweep import states
from tests.sweep import fakes

MakeSweep = Callable[[Plan], SweepFolder]


@pytest.mark.parametrize(("ends", "found"), [(False, "running"), (True, "done")])
def test_a_worker_that_begins_or_ends_while_the_files_are_read(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, ends: bool, found: str
) -> None:
    sweep = make_sweep(Plan("one", {}, (fakes.make_point("aa00", "train"),)))
    Ledger(sweep.ledger_path).append("submitted", point="aa00", token="t0")

    def begins(tokens: set[str]) -> set[str]:
        """What happens between the look at the files and the look at the processes."""
        sweep.point("aa00").new_attempt({**this_process(), "token": "t0"})
        if ends:
            sweep.point("aa00").write_result({"metrics": {}, "alias_of": None})
        return set() if ends else tokens

    monkeypatch.setattr(states, "live_tokens", begins)
    assert states.read_states(sweep)["aa00"].state == found
