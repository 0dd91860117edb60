"""What the benches call and count, on small caches without a GPU: times are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from sparrow_kernels.bench import inputs, landmarks, page_choice, paged_decode, step
from sparrow_kernels.bench.inputs import Heads, draw_pages, make_cache

TINY = Heads("tiny", 4, 2, 16)


@pytest.fixture(autouse=True)
def _made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call runs once and takes a millisecond."""

    def run(calls: Sequence[Callable[[], object]], repeats: int = 15, graph: bool = True) -> float:
        for call in calls:
            call()
        return 1.0

    for module in (landmarks, page_choice, paged_decode):
        monkeypatch.setattr(module, "median_ms", run)


def test_a_cache_names_each_page_once_and_draws_fresh_pages() -> None:
    cache = make_cache("cpu", TINY, 3, 64, 8)
    assert sorted(cache.table_BP.flatten().tolist()) == list(range(24))
    assert cache.kv_bytes(64) == 3 * 2 * 64 * 16 * 2 * 2
    first, second = (draw_pages(cache, 4, seed) for seed in (0, 1))
    assert first.shape == (3, 2, 4)
    assert bool((first.diff(dim=-1) > 0).all()) and int(first.max()) < 8
    assert not torch.equal(first, second)


def test_decode_counts_the_keys_and_values_that_are_read() -> None:
    cache = make_cache("cpu", TINY, 2, 128, 16)
    dense = paged_decode.dense_row(cache, TINY)
    sparse = paged_decode.sparse_row(cache, TINY, 64, aim_tb_per_s=3.5)
    assert dense.bytes == 2 * 2 * 128 * 16 * 4 and sparse.bytes == dense.bytes // 2
    assert sparse.aim_ms == pytest.approx(sparse.bytes / 3.5e12 * 1e3)
    assert dense.note == "tiny" and "page 16" in dense.shape


def test_choice_counts_the_landmarks_of_one_layer() -> None:
    choice = page_choice.Choice("cpu", TINY, 2, 256, 16, budget=128, layers=3)
    rows = [page_choice.ours(choice), page_choice.ours(choice, "softmax_max")]
    assert all(row.bytes == 2 * 16 * 2 * 16 * 2 and not row.peer for row in rows)
    assert page_choice.peer(choice).peer
    bounds = page_choice.Choice("cpu", TINY, 2, 256, 16, bounds=2, budget=128, layers=1)
    assert page_choice.ours(bounds).bytes == 2 * rows[0].bytes


def test_writes_count_what_goes_in_and_out() -> None:
    cache = make_cache("cpu", TINY, 2, 128, 16)
    token = 2 * 2 * 16 * 2
    assert landmarks.decoding(cache, full=False).bytes == 4 * token
    assert landmarks.decoding(cache, full=True).bytes == 4 * token + 16 * token
    plain, ours = landmarks.prompts(cache)
    assert plain.peer and plain.bytes == ours.bytes == 4 * 128 * token + 8 * token


def test_a_step_with_room_for_everything_is_dense_in_every_layer() -> None:
    """All layers write, choose and attend; a budget of the whole length leaves nothing out."""
    whole = step.Step("cpu", TINY, 3, 2, 128, 16, 128)
    outs = whole.run()
    for i, out in enumerate(outs):
        keys, values = whole.pools[i]
        given = (whole.q[i], keys, values, whole.table, None, whole.lengths, TINY.dim**-0.5)
        assert torch.equal(out, paged_decode.paged_decode(*given).out_BKGD)
    sparse = step.Step("cpu", TINY, 3, 2, 128, 16, 64)
    changed = sparse.run()
    assert torch.equal(changed[0], outs[0]) and not torch.equal(changed[1], outs[1])
    token = 2 * 2 * 16 * 2
    assert sparse.bytes(128) == 2 * 128 * token + 2 * (2 * 64 * token + 8 * token)


def test_heads_say_what_they_are() -> None:
    assert inputs.QWEN_14B.group == 5 and str(inputs.SMOLLM2) == "9/3 heads, dim 64"
