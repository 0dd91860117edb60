from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.presets import load_preset, preset_names
from sparrow_lab.sparsity.schedule import Schedule

# Rows of the release as it states them: pages chosen by score, the 3 reserved ones not counted.
RELEASE = {
    "qwen3-1.7b-0.86": [29, 61, 93, 93, 125, 157, 189, 221, 221] + [253] * 11,
    "qwen3-4b-0.92": [45, 93, 157, 189, 253, 381, 445, 765, 893, 1021, 1021] + [1149] * 9,
    "qwen3-8b-0.86": [29, 45, 61, 77, 125, 157, 189] + [253] * 4 + [317] * 6 + [385, 445, 445],
    "qwen3-14b-0.86": [29, 45, 77, 125, 253] + [381] * 10 + [509, 637, 637, 893, 893],
}


def release_pages(row: list[int], length: int) -> int:
    """The release's own rule: nblk decides the entry, and all pages are kept when they fit."""
    blocks = -(-length // 16)
    entry = next((i for i in range(19) if blocks < 125 * (i + 1)), 19)
    return min(blocks, row[entry] + 1 + 2)


@pytest.mark.parametrize("name", RELEASE)
def test_pages_equal_the_release_at_every_length(name: str) -> None:
    schedule = load_preset(name)
    lengths = np.arange(1, 41_000)
    expected = [release_pages(RELEASE[name], int(x)) for x in lengths]
    assert schedule.pages_for(lengths).tolist() == expected


@pytest.mark.parametrize("step", range(1, 20))
def test_a_step_starts_with_the_first_token_of_its_block(step: int) -> None:
    schedule = load_preset("qwen3-1.7b-0.94")
    first = 2000 * step - 15
    assert -(-first // 16) == 125 * step and -(-(first - 1) // 16) == 125 * step - 1
    assert schedule.budget_at(first) == schedule.budgets[step]
    assert schedule.budget_at(first - 1) == schedule.budgets[step - 1]


def test_all_twenty_are_there_and_rise_with_length_and_tau() -> None:
    names = preset_names()
    assert len(names) == 20
    by_model: dict[str, list[Schedule]] = {}
    for name in names:
        schedule = load_preset(name)
        assert schedule.name == name == f"{schedule.model}-{schedule.tau:.2f}"
        assert schedule.page_size == 16 and schedule.reserved_pages() == (1, 2)
        assert len(schedule.budgets) == 20 and min(schedule.budgets) >= 512
        by_model.setdefault(schedule.model or "", []).append(schedule)
    assert {m: len(s) for m, s in by_model.items()} == {
        "qwen3-1.7b": 8,
        "qwen3-4b": 6,
        "qwen3-8b": 5,
        "qwen3-14b": 1,
    }
    for levels in by_model.values():
        for low, high in itertools.pairwise(levels):
            assert np.all(np.array(low.budgets) <= np.array(high.budgets))
    assert len({load_preset(n).digest for n in names}) == 20


def test_names_by_model() -> None:
    assert preset_names("Qwen/Qwen3-14B") == ["qwen3-14b-0.86"]
    assert preset_names("tiny-s") == []


def test_unknown_names_show_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'qwen3-1.7b-0.8"):
        load_preset("qwen3-1.7b-0.85")
    with pytest.raises(UserError, match=r"the presets are qwen3-1\.7b-0\.75, "):
        load_preset("?")


def test_another_page_size_or_model_is_refused() -> None:
    schedule = load_preset("qwen3-1.7b-0.86")
    schedule.check_fits(16, "Qwen/Qwen3-1.7B")
    with pytest.raises(UserError, match="page size 16, but the run has page size 32"):
        schedule.check_fits(32, "Qwen/Qwen3-1.7B")
    with pytest.raises(UserError, match=r"qwen3-1\.7b, but the run has model Qwen/Qwen3-4B"):
        schedule.check_fits(16, "Qwen/Qwen3-4B")
    schedule.check_fits(16, "Qwen/Qwen3-4B", any_model=True)
    with pytest.raises(UserError, match="page size"):
        schedule.check_fits(32, "Qwen/Qwen3-4B", any_model=True)
