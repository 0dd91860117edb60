"""The kernel of paged decode against the definition in float64, and what must be the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.dispatch import settings as launch_settings
from sparrow_kernels.paged_decode import merge_attended, naive, paged_decode
from tests.kernels.decode_cases import Case, make_case
from tests.kernels.devices import DEVICES, poisoned

CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DTYPES = [torch.float32, torch.bfloat16]


def definition(case: Case) -> naive.Attended:
    wide = case.wide()
    return naive.paged_decode(
        wide.q_BKGD,
        wide.keys_NKSD,
        wide.values_NKSD,
        wide.table_BP,
        wide.pages_BKW,
        wide.lengths_B,
        wide.scale,
    )


def assert_right(case: Case, keep_BK: Tensor | None = None) -> None:
    """The kernel's result, in memory that held NaN, is the definition's."""
    told = definition(case)
    with poisoned():
        ours = case.call("triton", keep_BK)
    assert ours.out_BKGD.dtype == case.q_BKGD.dtype and ours.lse_BKG.dtype == torch.float32
    close = CLOSE[case.q_BKGD.dtype]
    out, lse = (x.cpu().double() for x in ours)
    torch.testing.assert_close(out, told.out_BKGD, atol=close, rtol=close)
    torch.testing.assert_close(lse, told.lse_BKG, atol=close, rtol=close)


def full(lengths: list[int], K: int, S: int) -> list[list[set[int]]]:
    """Every page of every head."""
    return [[set(range(-(-n // S))) for _ in range(K)] for n in lengths]


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `make_case`: ragged lengths, empty slots, holes in the page tables."""
    B, K = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 70), min_size=B, max_size=B))
    pages = st.sets(st.integers(0, 70), max_size=12)
    heads = st.lists(pages, min_size=K, max_size=K)
    return {
        "B": B,
        "K": K,
        "G": draw(st.sampled_from([1, 2, 3, 4, 5, 8])),
        "S": draw(st.sampled_from([1, 3, 4, 8, 16, 32])),
        "D": draw(st.sampled_from([8, 16, 24, 64])),
        "lengths": lengths,
        "keep": draw(st.lists(heads, min_size=B, max_size=B)),
        "spare": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 99)),
    }


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(call=calls(), dtype=st.sampled_from(DTYPES), dense=st.booleans())
def test_any_shape_equals_the_definition(
    device: str, call: dict[str, Any], dtype: torch.dtype, dense: bool
) -> None:
    case = make_case(**call).to(device, dtype)
    unnamed = case.unnamed_rows()
    case.keys_NKSD[unnamed] = float("nan")
    case.values_NKSD[unnamed] = float("nan")
    if case.lengths_B.min() == 0:  # an empty slot's table names page 0, whatever that holds
        case.table_BP[case.lengths_B == 0] = int(case.table_BP[case.lengths_B.argmax(), 0])
        if case.lengths_B.max() == 0:
            case.keys_NKSD.zero_(), case.values_NKSD.zero_()
    assert_right(case.dense() if dense else case)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("D", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("S", "G"), [(4, 1), (16, 2), (32, 4), (16, 5), (64, 8), (128, 3)])
def test_head_dims_page_sizes_and_groups(device: str, D: int, S: int, G: int) -> None:
    lengths = [1, 63, 100] if device == "cpu" else [1, 63, 100, 2000]
    keep: list[list[set[int]]] = [[{0, 2, 5}, set()] for _ in lengths]
    case = make_case(len(lengths), 2, G, S, D, lengths, keep, 3, D + S)
    dtype = DTYPES[(S + D) % 2] if device == "cpu" else torch.bfloat16
    assert_right(case.to(device, dtype))
    assert_right(case.dense().to(device, dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_long_rows_are_merged_from_their_chunks(device: str) -> None:
    lengths = [200, 33, 1, 0, 131] if device == "cpu" else [20_000, 3_000, 1, 0, 131]
    case = make_case(5, 2, 2, 16, 16, lengths, full(lengths, 2, 16), 9, 3)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    assert_right(case.to(device, dtype))
    assert_right(case.dense().to(device, torch.float32))


@pytest.mark.gpu
def test_half_precision() -> None:
    case = make_case(2, 2, 4, 16, 128, [500, 77], [[{0, 3}, {1}]] * 2, 3, 0)
    assert_right(case.to("cuda", torch.float16))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=10)
@given(call=calls(), dtype=st.sampled_from(DTYPES))
def test_keeping_every_page_gives_the_bits_of_the_dense_call(
    device: str, call: dict[str, Any], dtype: torch.dtype
) -> None:
    call["keep"] = full(call["lengths"], call["K"], call["S"])
    case = make_case(**call).to(device, dtype)
    dense, sparse = case.dense().call("triton"), case.call("triton")
    assert torch.equal(dense.out_BKGD, sparse.out_BKGD)
    assert torch.equal(dense.lse_BKG, sparse.lse_BKG)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_that_keeps_everything_beside_one_that_does_not(device: str) -> None:
    """Same bits as dense, though the choice is narrower than the table."""
    lengths = [90, 700]
    keep: list[list[set[int]]] = [[set(range(6))] * 2, [{0, 5, 9}] * 2]
    case = make_case(2, 2, 2, 16, 32, lengths, keep, 5, 0).to(device, torch.float32)
    assert case.pages_BKW is not None
    assert case.pages_BKW.shape[2] < case.table_BP.shape[1]
    sparse, dense = case.run("triton"), case.dense().run("triton")
    assert torch.equal(sparse[0], dense[0])
    assert not torch.equal(sparse[1], dense[1])


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_and_room_for_more_pages_change_no_bit(device: str) -> None:
    """A row alone, the same row beside others, and with a wider table and choice."""
    lengths = [150, 40, 77]
    case = make_case(3, 2, 2, 8, 16, lengths, [[{0, 4, 7, 9}] * 2] * 3, 5, 1)
    case = case.to(device, torch.float32)
    assert case.pages_BKW is not None
    both = case.call("triton")
    alone = Case(
        case.q_BKGD[:1],
        case.keys_NKSD,
        case.values_NKSD,
        case.table_BP[:1],
        case.pages_BKW[:1],
        case.lengths_B[:1],
        case.scale,
    ).call("triton")
    if device == "cpu":  # on a GPU the cut into chunks depends on the number of rows
        assert torch.equal(both.out_BKGD[:1], alone.out_BKGD)
    P = case.table_BP.shape[1]
    pages = case.pages_BKW.masked_fill(case.pages_BKW == P, 4 * P)
    wider = replace(
        case,
        table_BP=case.table_BP.repeat(1, 4),
        pages_BKW=torch.cat([pages, torch.full_like(pages, 4 * P)], dim=2),
    )
    keep = (case.pages_BKW < P).sum(-1)
    assert torch.equal(wider.call("triton").out_BKGD, both.out_BKGD)
    assert torch.equal(wider.call("triton", keep).out_BKGD, both.out_BKGD)


@pytest.mark.parametrize("device", DEVICES)
def test_slots_beyond_the_length_are_never_read(device: str) -> None:
    case = make_case(2, 1, 2, 8, 16, [13, 20], [[{0}], [{1}]], 2, 0).to(device, torch.float32)
    before = case.run("triton")
    for b, length in enumerate(case.lengths_B.tolist()):
        page = int(case.table_BP[b, (length - 1) // 8])
        case.keys_NKSD[page, :, (length - 1) % 8 + 1 :] = float("nan")
        case.values_NKSD[page, :, (length - 1) % 8 + 1 :] = float("nan")
    assert torch.equal(case.run("triton"), before)


@pytest.mark.parametrize("device", DEVICES)
def test_keep_says_how_many_pages_a_row_reads(device: str) -> None:
    """Columns behind `keep` may hold anything."""
    case = make_case(2, 2, 2, 4, 16, [30, 30], [[{0, 2, 4}] * 2] * 2, 2, 0).to(device, DTYPES[0])
    assert case.pages_BKW is not None
    keep = torch.tensor([[4, 4], [2, 3]], dtype=torch.int32, device=device)
    columns = torch.arange(4, device=device)
    blank = replace(case, pages_BKW=case.pages_BKW.masked_fill(columns >= keep[..., None], 8))
    case.pages_BKW.masked_fill_(columns >= keep[..., None], -99)
    assert torch.equal(case.call("triton", keep).out_BKGD, blank.run("triton"))
    assert_right(blank)


@pytest.mark.parametrize("device", DEVICES)
def test_keys_and_values_may_be_parts_of_one_pool(device: str) -> None:
    case = make_case(2, 2, 2, 4, 16, [30, 9], [[{0, 2}] * 2] * 2, 2, 0).to(device, DTYPES[0])
    pool = torch.stack([case.keys_NKSD, case.values_NKSD], dim=1)
    parts = replace(case, keys_NKSD=pool[:, 0], values_NKSD=pool[:, 1])
    assert torch.equal(parts.run("triton"), case.run("triton"))


@pytest.mark.parametrize("device", DEVICES)
def test_parts_are_merged_by_their_log_sum_exp(device: str) -> None:
    """A shared beginning and what follows, each attended to alone, and an empty part."""
    case = make_case(2, 2, 2, 4, 16, [28, 20], full([28, 20], 2, 4), 2, 0).to(device, DTYPES[0])
    assert case.pages_BKW is not None
    P = case.table_BP.shape[1]
    halves = []
    for kept in (case.pages_BKW < 2, (case.pages_BKW >= 2) & (case.pages_BKW < P)):
        pages = case.pages_BKW.masked_fill(~kept, P).sort(dim=-1).values
        halves.append(replace(case, pages_BKW=pages).call("triton"))
    empty = replace(case, lengths_B=torch.zeros_like(case.lengths_B)).call("triton")
    assert float(empty.out_BKGD.abs().max()) == 0.0
    merged, whole = merge_attended([*halves, empty]), case.call("triton")
    torch.testing.assert_close(merged.out_BKGD, whole.out_BKGD, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged.lse_BKG, whole.lse_BKG, atol=1e-5, rtol=1e-5)
    nothing = merge_attended([empty, empty])
    assert float(nothing.out_BKGD.abs().max()) == 0.0 and bool((nothing.lse_BKG < -1e30).all())


# ------------------------------------------------------------------ what is refused
def refused(**changes: Any) -> str:
    case = make_case(2, 2, 2, 4, 16, [30, 9], [[{0, 2}] * 2] * 2, 2, 0)
    names = ("q_BKGD", "keys_NKSD", "values_NKSD", "table_BP", "pages_BKW", "lengths_B", "scale")
    arguments = {name: getattr(case, name) for name in names} | changes
    with pytest.raises(ValueError, match=r"^paged_decode: ") as caught:
        paged_decode(**arguments)
    return str(caught.value)


def test_what_does_not_fit_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"q_BKGD": torch.zeros(2, 4, 16)}, "q must be"),
        ({"q_BKGD": torch.zeros(2, 2, 17, 16).double()}, "allowed: 1 to 16"),
        ({"q_BKGD": torch.zeros(2, 2, 16, 2).double().transpose(2, 3)}, "contiguous in its last"),
        ({"keys_NKSD": torch.zeros(9, 2, 4, 16)}, "dtype and device of q"),
        ({"values_NKSD": torch.zeros(9, 3, 4, 16).double()}, "values must be"),
        ({"keys_NKSD": torch.zeros(9, 2, 16, 4).double().transpose(2, 3)}, "follow each other"),
        ({"table_BP": torch.zeros(2, 3)}, "int32 or int64"),
        ({"table_BP": torch.zeros(3, 3, dtype=torch.int32)}, "table must be"),
        ({"lengths_B": torch.ones(3, dtype=torch.int32)}, "lengths must be"),
        ({"pages_BKW": torch.zeros(2, 5, 1, dtype=torch.int32)}, "pages must be"),
        ({"keep_BK": torch.zeros(2, 5, dtype=torch.int32)}, "keep goes with pages"),
    ]
    for changes, words in wrong:
        assert words in refused(**changes), changes


def test_page_numbers_out_of_range_are_named_in_debug_mode(monkeypatch: Any) -> None:
    case = make_case(2, 2, 2, 4, 16, [30, 9], [[{0, 2}] * 2] * 2, 2, 0)
    table = case.table_BP.clone()
    table[1, 2] = 99
    assert "table[1, 2] is page 99" in refused(table_BP=table, debug=True)
    assert case.pages_BKW is not None
    pages = case.pages_BKW.clone()
    pages[1, 0, 1] = 3
    assert "the sequence uses 3 pages" in refused(pages_BKW=pages, debug=True)
    monkeypatch.setenv("SPARROW_DEBUG", "1")
    assert "length 99" in refused(lengths_B=torch.tensor([99, 1]))
    monkeypatch.delenv("SPARROW_DEBUG")
    case.run()


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch: Any) -> None:
    case = make_case(1, 1, 1, 4, 16, [3], [[set()]], 1, 0)
    with pytest.raises(ValueError, match="bfloat16, float16 and float32"):
        case.run("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="needs CUDA tensors"):
        case.to("cpu", torch.float32).run("triton")


# ------------------------------------------------------------------ launch settings
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(
    call=calls(),
    slots=st.integers(0, 60),
    least=st.sampled_from([1, 16, 40]),
    whole=st.sampled_from([16, 48, 1000]),
    unit=st.sampled_from([16, 32, 50]),
    dense=st.booleans(),
)
def test_however_rows_are_cut(
    device: str, call: dict[str, Any], slots: int, least: int, whole: int, unit: int, dense: bool
) -> None:
    """Few rows are cut to fill the GPU, long ones to end together: the result is the same."""
    from sparrow_kernels.paged_decode.triton import launch

    case = make_case(**call).to(device, torch.float32)
    tile = {"block": 16, "warps": 1, "stages": 1, "slots": slots, "early": True}
    tile |= {"least": least, "whole": whole, "unit": unit}
    pages = None if dense else case.pages_BKW
    keep = None if pages is None else (pages < case.table_BP.shape[1]).sum(-1)
    pool = (case.q_BKGD, case.keys_NKSD, case.values_NKSD, case.table_BP)
    told = definition(case.dense() if dense else case)
    with poisoned():
        ours = launch(*pool, pages, keep, case.lengths_B, case.scale, None, tile)
    torch.testing.assert_close(ours.out_BKGD.cpu().double(), told.out_BKGD, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours.lse_BKG.cpu().double(), told.lse_BKG, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("op", ["landmarks", "page_choice", "paged_decode"])
@pytest.mark.parametrize("device", ["NVIDIA H200", "a GPU that nobody timed"])
def test_every_gpu_has_settings(op: str, device: str) -> None:
    """A known GPU names what differs from the default, an unknown one gets the default."""
    found = launch_settings(op, device)
    assert found.keys() == launch_settings(op, "another unknown one").keys()
    if op == "paged_decode":
        for ways in found["by_dim"].values():
            rows = [way["rows"] for way in ways]
            assert rows == sorted(rows, reverse=True) and rows[-1] == 0
            assert all(way["block"] % 16 == 0 and way["unit"] % way["block"] == 0 for way in ways)
    if op == "page_choice":
        assert [way["marks"] for way in found["by_marks"]][-1] == 0
