"""The bench of steps runs, times what it says, and its floors are what a step must move."""

from __future__ import annotations

import pytest
import torch

from sparrow_kernels.bench.row import byte_floor
from sparrow_lab.cli import main
from sparrow_lab.rollout.paged.bench import peers
from sparrow_lab.rollout.paged.bench import rows as bench
from sparrow_lab.rollout.paged.bench.shapes import (
    SHAPES,
    Shape,
    find_shape,
    random_decoder,
    step_bytes,
    weight_bytes,
)
from sparrow_lab.rollout.paged.bench.timer import StepTimer
from sparrow_lab.sparsity.schedule import Schedule

CPU = torch.device("cpu")
SMALL = Shape(3, 32, 4, 48, True, head_dim=8, kv_heads=2, vocabulary=50)


def test_the_shapes_have_the_papers_parameters() -> None:
    """Weights read in a step: body and head, in billions, as its models have them."""
    expected = {"1.7b": 1.409 + 0.311, "4b": 3.634 + 0.389, "8b": 6.946 + 0.622, "14b": 13.99}
    for name, billions in expected.items():
        s = SHAPES[f"qwen3-{name}"]
        qkv = s.hidden * s.head_dim * (s.heads + 2 * s.kv_heads)
        layer = qkv + s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.inner
        count = s.layers * layer + s.vocabulary * s.hidden
        assert count / 1e9 == pytest.approx(billions, rel=2e-3)


def test_bytes_of_a_step_by_hand() -> None:
    decoder = random_decoder(SMALL, CPU, 256)
    head, body = 50 * 32, 32 * 8 * 8 + 32 * 32 + 3 * 32 * 48 + 2 * 32 + 4 * 8
    assert weight_bytes(decoder) == 4 * (3 * body + head + 32)
    token = 2 * 8 * 4  # a key or a value of all KV heads
    dense = step_bytes(decoder, Schedule.dense(4), 5, 99)
    assert dense - weight_bytes(decoder) == 5 * 3 * 2 * token * 99
    sparse = step_bytes(decoder, Schedule.fixed(20, 4, dense_layers=1), 5, 99)
    # of 25 pages, the last of 3 tokens, 5 are read, and the marks of 24
    by_hand = 2 * 99 + 2 * (2 * 19 + 24)
    assert sparse - weight_bytes(decoder) == 5 * token * by_hand


def test_a_step_is_timed_at_the_length_asked_for() -> None:
    decoder = random_decoder(SMALL, CPU, 256)
    schedule = Schedule.fixed(20, 4, dense_layers=1)
    timer = StepTimer(decoder, schedule, 3, 100)
    seen = []
    run = timer._run

    def watched(shape):  # type: ignore[no-untyped-def]
        run(shape)
        seen.append((timer.slots["length"].tolist(), shape.choice is None))

    timer._run = watched  # type: ignore[method-assign]
    for length, way in ((100, schedule), (7, Schedule.dense(4))):
        assert timer.ms(way, length, 2) > 0
        assert seen[-1] == ([length] * 3, way.is_dense)
    assert torch.isfinite(timer.slots.logp).all()
    table = timer.slots["table"]
    assert len(torch.unique(table)) == table.numel() == timer.store.pages


def test_lines_of_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bench, peers):
        monkeypatch.setattr(module, "find_shape", lambda _: SMALL)
    monkeypatch.setattr(bench, "TABLE4", {16: (4.59, 5.13, 5.41)})
    parts = [part for part in bench.PARTS if part != "trajectory"]
    found = {part: list(bench.rows(part, "qwen3-1.7b", CPU, True)) for part in parts}
    dense, sparse = found["step"]
    assert (dense.variant, sparse.variant) == ("dense", "qwen3-1.7b-0.86")
    assert dense.floor_ms == byte_floor(dense.bytes) and sparse.bytes <= dense.bytes
    assert dense.aim_ms == pytest.approx(1.2 * dense.floor_ms)
    assert [row.variant for row in found["whole"]] == ["qwen3-1.7b-0.86", "dense"]
    assert all("tokens/s" in row.note for row in found["whole"])
    assert [row.peer for row in found["peers"]] == [True, True, False, False]
    batch, dense = found["peers"][1], found["peers"][2]
    assert batch.note.endswith("1.00 x generate_batch")
    assert dense.aim_ms == pytest.approx(batch.ms / 8)
    assert [row.aim_ms for row in found["table4"]] == pytest.approx([3.06, 3.42, 3.6067], abs=1e-3)


def test_the_mean_over_a_trajectory_is_that_of_straight_lines() -> None:
    assert bench._mean([0, 10, 40], [1.0, 3.0, 6.0]) == pytest.approx((20 + 135) / 40)


def test_what_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_shape("qwen3-8b").layers == 36
    for options, what in (
        (["--part", "stp"], "--part: unknown 'stp' (did you mean 'step'?)"),
        (["--model", "qwen3-9b"], "--model: unknown 'qwen3-9b'"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["bench", "rollout", *options])
        assert left.value.code == 2
        assert what in capsys.readouterr().err
