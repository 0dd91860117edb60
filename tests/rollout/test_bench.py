"""The benchmark of the tiny models runs, and compares like with like."""

from __future__ import annotations

from sparrow_lab.rollout.bench import bench_tiny


def test_three_ways_generate_the_same_number_of_tokens() -> None:
    rows = bench_tiny(sequences=2, new_tokens=4, repeats=1)
    assert [row.what for row in rows] == [
        "transformers generate",
        "sparrow-lab dense",
        "sparrow-lab sparse, budget 56",
    ]
    for row in rows:
        assert row.seconds > 0
        assert abs(row.tokens_per_s * row.seconds - 8) < 1e-6
        assert abs(row.ms_per_step - 1e3 * row.seconds / 4) < 1e-6
