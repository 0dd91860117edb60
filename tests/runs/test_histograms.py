"""Acceptance histograms of attempts: parts, compaction, merged by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparrow_lab.acceptance.histogram import AcceptanceHistogram
from sparrow_lab.runs.damage import Damaged
from sparrow_lab.runs.histograms import HistogramWriter, compact, read_histograms
from sparrow_lab.runs.layout import PointFolder


def histogram(seed: int, tokens: int = 200) -> AcceptanceHistogram:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 100, tokens)
    return AcceptanceHistogram.empty(16).add(lengths, rng.beta(20, 1, tokens), lengths % 7)


def test_each_step_comes_back_from_its_highest_attempt(tmp_path: Path) -> None:
    point = PointFolder(tmp_path / "abc")
    first = point.new_attempt({})
    writer = HistogramWriter(first)
    for step in (1, 2):
        writer.add(step, histogram(step))
    writer.flush(2)
    writer.add(3, histogram(3))
    writer.flush(3)
    writer.add(4, histogram(4))  # never flushed: lost with the process
    second = point.new_attempt({})
    writer = HistogramWriter(second)
    writer.add(3, histogram(33))
    writer.flush(3)
    for compacted in (False, True, True):
        if compacted:
            compact(first)
            compact(second)
            assert not first.histograms.exists()
        found = read_histograms(point)
        assert [step for step, _ in found] == [1, 2, 3]
        for (_, got), seed in zip(found, (1, 2, 33), strict=True):
            want = histogram(seed)
            assert np.array_equal(got.counts, want.counts)
            assert np.array_equal(got.prompts, want.prompts)
            assert got.percentile(0.05) == want.percentile(0.05)
            assert got.mean() == want.mean()


def test_nothing_added_leaves_no_file(tmp_path: Path) -> None:
    point = PointFolder(tmp_path / "abc")
    attempt = point.new_attempt({})
    HistogramWriter(attempt).flush(1)
    compact(attempt)
    assert read_histograms(point) == []
    assert [p.name for p in attempt.path.iterdir()] == ["claim.json"]


def test_a_half_written_part_is_not_read(tmp_path: Path) -> None:
    point = PointFolder(tmp_path / "abc")
    attempt = point.new_attempt({})
    writer = HistogramWriter(attempt)
    writer.add(1, histogram(1))
    writer.flush(1)
    (attempt.histograms / ".part-00000002.parquet.1.tmp").write_bytes(b"PAR1")
    assert [step for step, _ in read_histograms(point)] == [1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    point = PointFolder(tmp_path / "points" / "abc")
    attempt = point.new_attempt({})
    writer = HistogramWriter(attempt)
    writer.add(1, histogram(1))
    writer.flush(1)
    compact(attempt)
    whole = attempt.path / "histograms.parquet"
    whole.write_bytes(whole.read_bytes()[:300])
    with pytest.raises(Damaged, match=r"^attempts/1/histograms.parquet is damaged: Parquet magic"):
        read_histograms(point)
