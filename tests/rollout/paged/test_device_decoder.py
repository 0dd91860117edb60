"""The layers that a GPU runs, on their definitions: the same maths, weights that stay in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparrow_kernels.paged_decode.triton import base_chunks, most_chunks, pick_settings
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.rollout.paged.graphs import (
    FEW_COLUMNS,
    NARROW_TOKENS,
    choice_width,
    padded,
    padded_columns,
)
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import FAMILIES, own_copy, small_model
from tests.rollout.test_engine import PLAIN, assert_same_samples, make_prompts

SPARSE = Schedule.fixed(12, 4, dense_layers=1)


def on_device_layers(engine: PagedEngine) -> PagedEngine:
    """The same engine with the layers of a GPU."""
    engine.decoder = DeviceDecoder(engine.decoder.model)
    engine.decoder.reserve_turns(engine.runner.context)
    engine.runner.decoder = engine.decoder
    return engine


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("group", [1, 2, 5])
def test_the_maths_is_that_of_the_other_decoder(family: str, group: int) -> None:
    """Rotary tables are float32 in the kernels, so float64 agrees to that."""
    model = small_model(family, group)
    plain, device = Decoder(model), DeviceDecoder(model)
    tokens = torch.tensor(make_prompts([17, 17]))
    told, cache = plain.prefill(tokens)
    ours, mine = device.prefill(tokens)
    torch.testing.assert_close(ours, told, atol=1e-10, rtol=0)
    torch.testing.assert_close(torch.stack(mine), torch.stack(cache), atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_are_the_same_by_either_decoder(family: str) -> None:
    model, prompts = small_model(family, 2), make_prompts([30, 9, 4])
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 2}
    plain = PagedEngine(model, SPARSE).generate(prompts, 2, PLAIN, **options)
    engine = on_device_layers(PagedEngine(model, SPARSE))
    ours = engine.generate(prompts, 2, PLAIN, **options)
    assert_same_samples(ours, plain, [(s, s) for s in range(6)])


def test_an_update_is_taken_over_in_the_same_memory() -> None:
    model: Any = own_copy(small_model("qwen3", 2, dtype=torch.float32))
    decoder = DeviceDecoder(model)
    whole = [decoder.embedding, decoder.head, decoder._norm]
    held = [*whole, *(x for w in decoder._weights for x in vars(w).values() if x is not None)]
    places = [x.data_ptr() for x in held]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.7)
    decoder.refresh()
    assert [x.data_ptr() for x in held] == places
    fresh, tokens = DeviceDecoder(model), torch.tensor(make_prompts([17]))
    assert torch.equal(decoder.prefill(tokens)[0], fresh.prefill(tokens)[0])


def test_weights_that_moved_are_taken_over_too() -> None:
    """A trainer may give a parameter other memory: what a graph holds must follow."""
    model: Any = own_copy(small_model("llama", 2, dtype=torch.float32))
    decoder = DeviceDecoder(model)
    place = decoder._weights[0].out.data_ptr()
    o_proj = model.model.layers[0].self_attn.o_proj
    o_proj.weight = torch.nn.Parameter(o_proj.weight.detach() * 2)
    decoder.refresh()
    assert decoder._weights[0].out.data_ptr() == place
    assert torch.equal(decoder._weights[0].out, o_proj.weight.t())


def test_low_precision_is_the_models_own() -> None:
    """In bfloat16 the layers round where transformers does, but for the rotation."""
    model: Any = small_model("qwen3", 2, dtype=torch.bfloat16)
    tokens = torch.tensor(make_prompts([40]))
    with torch.no_grad():
        told = model.model(tokens).last_hidden_state.double()
        exact: Any = small_model("qwen3", 2)
        exact = own_copy(exact)
        for mine, theirs in zip(exact.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs.double())
        truth = exact.model(tokens).last_hidden_state
    ours = DeviceDecoder(model).prefill(tokens)[0].double()
    assert float((ours - truth).abs().mean()) < 1.2 * float((told - truth).abs().mean())


@given(count=st.integers(1, 300), most=st.integers(1, 300))
def test_batches_are_rounded_up_by_little(count: int, most: int) -> None:
    most = max(most, count)
    found = padded(count, most)
    assert count <= found <= most
    assert found - count < max(1, count / 4)
    assert padded(found, most) == found


@given(columns=st.integers(1, 5000), most=st.integers(1, 5000))
def test_tables_are_rounded_up_to_powers_of_two(columns: int, most: int) -> None:
    most = max(most, columns)
    found = padded_columns(columns, most)
    assert columns <= found <= most
    assert found == most or (found & (found - 1) == 0 and found >= FEW_COLUMNS)


@given(
    budgets=st.lists(st.integers(3, 2000), min_size=1, max_size=4),
    size=st.sampled_from([4, 16, 64]),
    columns=st.integers(1, 5000),
    data=st.data(),
)
def test_a_choice_has_room_for_every_length(
    budgets: list[int], size: int, columns: int, data: st.DataObject
) -> None:
    edges = tuple(range(0, 5000 * len(budgets), 5000))
    kept = tuple(size * pages for pages in sorted(budgets))
    schedule = Schedule(page_size=size, edges=edges, budgets=kept)
    width = choice_width(schedule, columns)
    assert width in (columns, NARROW_TOKENS // size)
    length = data.draw(st.integers(1, columns * size))
    assert min(schedule.pages_at(length), columns) <= width <= columns


def test_few_batch_sizes_come_up() -> None:
    assert len({padded(n, 256) for n in np.arange(1, 257)}) <= 32


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [32, 128, 160, 232, 512])
def test_no_row_of_a_narrow_choice_is_cut_for_being_long(head_dim: int, rows: int) -> None:
    tile = pick_settings(rows, head_dim, "NVIDIA H200")
    assert most_chunks(NARROW_TOKENS, tile, rows) == base_chunks(tile, rows)
    assert most_chunks(4 * NARROW_TOKENS, tile, rows) > base_chunks(tile, rows)
