"""Mergeable counts of acceptance by length bin.

A token enters with its length (prompt + generated, its own key and value included)
and its acceptance alpha in [0, 1]. Counts add up across batches, steps and workers, so a
percentile over a whole run needs no raw tokens. Masked tokens never enter: there is no
padding value to forget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

EDGES: FloatArray = np.concatenate(
    [
        np.arange(0, 990) / 1_000,
        np.arange(9_900, 9_990) / 10_000,
        np.arange(99_900, 100_000) / 100_000,
        [1.0],
    ]
)
"""Edges of the acceptance bins: 0.001 wide up to 0.99, then 1e-4, then 1e-5 above 0.999."""

ACCEPTANCE_BINS = len(EDGES) - 1


def acceptance_bin(acceptance: FloatArray) -> IntArray:
    """Index of the bin of each value; values are clipped to [0, 1] (rounding may pass 1).

    Raises:
        ValueError: on NaN, which would mean that a masked token got in.
    """
    if np.isnan(acceptance).any():
        raise ValueError("acceptance holds NaN: mask tokens before they are counted")
    index = np.searchsorted(EDGES, np.clip(acceptance, 0.0, 1.0), side="right") - 1
    return np.minimum(index, ACCEPTANCE_BINS - 1).astype(np.int64)


def percentile_of_counts(counts: npt.NDArray[Any], q: float) -> float:
    """The q-quantile (0..1) of counts over `EDGES`; NaN if there are none.

    The bin is that of numpy's `inverted_cdf` order statistic, and the value is placed inside it
    by rank, so the error is below one bin width: 0.001, and less near 1.
    """
    total = counts.sum()
    if total <= 0:
        return float("nan")
    cumulative = np.cumsum(counts)
    rank = max(q * total, np.finfo(float).tiny)
    index = int(np.searchsorted(cumulative, rank, side="left"))
    before = cumulative[index - 1] if index else 0
    share = (rank - before) / counts[index]
    return float(EDGES[index] + share * (EDGES[index + 1] - EDGES[index]))


@dataclass(frozen=True)
class AcceptanceHistogram:
    """Counts over (length bin x acceptance bin).

    Attributes:
        bin_width: tokens a length bin; bin i covers lengths i * bin_width .. (i + 1) * bin_width
        - 1. counts: int64 [length bins, ACCEPTANCE_BINS].
        sums: float64 [length bins], the exact sum of acceptance, for exact means.
        prompts: int64 [length bins], distinct prompts that reached the bin, added up over merges.
        estimator: `exact` (full vocabulary) or `top_k`.
        top_k: k of the top-k estimator.
        kept_mass: sum of the dense mass that the top-k sets covered (equals tokens if exact).
        temperature: sampling temperature of both distributions.
        ceiling_p05: p5 of dense rollout against dense recompute, if it was measured.
    """

    bin_width: int
    counts: IntArray
    sums: FloatArray
    prompts: IntArray
    estimator: str = "exact"
    top_k: int | None = None
    kept_mass: float = 0.0
    temperature: float = 1.0
    ceiling_p05: float | None = None

    @classmethod
    def empty(cls, bin_width: int, **settings: Any) -> AcceptanceHistogram:
        """A histogram without tokens."""
        if bin_width < 1:
            raise ValueError(f"bin width must be at least 1, not {bin_width}")
        return cls(
            bin_width,
            np.zeros((0, ACCEPTANCE_BINS), np.int64),
            np.zeros(0),
            np.zeros(0, np.int64),
            **settings,
        )

    def add(
        self,
        lengths: npt.NDArray[Any],
        acceptance: npt.NDArray[Any],
        prompt_ids: npt.NDArray[Any] | None = None,
        kept_mass: npt.NDArray[Any] | None = None,
    ) -> AcceptanceHistogram:
        """Return a histogram with these tokens added.

        Args:
            lengths: [tokens] lengths, at least 1.
            acceptance: [tokens] acceptance of valid tokens only.
            prompt_ids: [tokens] which prompt each token belongs to, to count prompts a bin.
            kept_mass: [tokens] mass covered by the top-k sets; ones if exact.
        """
        lengths = np.asarray(lengths, np.int64).ravel()
        acceptance = np.asarray(acceptance, np.float64).ravel()
        if lengths.shape != acceptance.shape:
            raise ValueError(f"{lengths.size} lengths for {acceptance.size} acceptance values")
        if not lengths.size:
            return self
        rows = lengths // self.bin_width
        size = int(rows.max()) + 1
        flat = np.bincount(
            rows * ACCEPTANCE_BINS + acceptance_bin(acceptance), minlength=size * ACCEPTANCE_BINS
        )
        prompts = np.zeros(size, np.int64)
        if prompt_ids is not None:
            pairs = np.unique(np.stack([rows, np.asarray(prompt_ids, np.int64).ravel()]), axis=1)
            prompts = np.bincount(pairs[0], minlength=size).astype(np.int64)
        new = replace(
            self,
            counts=flat.reshape(size, ACCEPTANCE_BINS).astype(np.int64),
            sums=np.bincount(rows, weights=acceptance, minlength=size).astype(np.float64),
            prompts=prompts,
            kept_mass=float(lengths.size if kept_mass is None else np.sum(kept_mass)),
        )
        return self.merge(new)

    def merge(self, other: AcceptanceHistogram) -> AcceptanceHistogram:
        """Return the sum of two histograms.

        Raises:
            ValueError: if bin width, estimator, k or temperature differ: such counts do not add.
        """
        for name in ("bin_width", "estimator", "top_k", "temperature"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"histograms differ in {name}: {mine} and {theirs}")
        size = max(len(self.counts), len(other.counts))

        def padded(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1))

        return replace(
            self,
            counts=padded(self.counts) + padded(other.counts),
            sums=padded(self.sums) + padded(other.sums),
            prompts=padded(self.prompts) + padded(other.prompts),
            kept_mass=self.kept_mass + other.kept_mass,
            ceiling_p05=self.ceiling_p05 if self.ceiling_p05 is not None else other.ceiling_p05,
        )

    def percentile(self, q: float, bins: int | slice | None = None) -> float:
        """The q-quantile (0..1) over one length bin, a slice of bins, or all; NaN if empty."""
        return percentile_of_counts(self._rows(self.counts, bins).sum(axis=0), q)

    def mean(self, bins: int | slice | None = None) -> float:
        """Mean acceptance, exact; NaN if empty."""
        tokens = self.tokens(bins)
        return float(self._rows(self.sums, bins).sum() / tokens) if tokens else float("nan")

    def tokens(self, bins: int | slice | None = None) -> int:
        """Tokens counted."""
        return int(self._rows(self.counts, bins).sum())

    def bin_starts(self) -> list[int]:
        """First length of each length bin, empty bins included."""
        return [i * self.bin_width for i in range(len(self.counts))]

    @staticmethod
    def _rows(x: npt.NDArray[Any], bins: int | slice | None) -> npt.NDArray[Any]:
        if bins is None:
            return x
        return x[bins : bins + 1] if isinstance(bins, int) else x[bins]

    def to_table(self, step: int) -> pa.Table:
        """Sparse Arrow table (step, bin_start, acceptance_bin, count) and one summary row a bin.

        A row with acceptance_bin -1 carries a bin's prompts and sum. Settings lie in the schema's
        metadata under `sparrow`.
        """
        import json

        import pyarrow as pa

        row, column = np.nonzero(self.counts)
        used = np.flatnonzero(self.counts.sum(axis=1) > 0)
        settings = {
            "bin_width": self.bin_width,
            "estimator": self.estimator,
            "top_k": self.top_k,
            "kept_mass": self.kept_mass,
            "temperature": self.temperature,
            "ceiling_p05": self.ceiling_p05,
        }
        table = pa.table(
            {
                "step": pa.array(np.full(len(row) + len(used), step, np.int64)),
                "bin_start": pa.array(np.concatenate([row, used]) * self.bin_width),
                "acceptance_bin": pa.array(np.concatenate([column, np.full(len(used), -1)])),
                "count": pa.array(np.concatenate([self.counts[row, column], self.prompts[used]])),
                "sum": pa.array(np.concatenate([np.zeros(len(row)), self.sums[used]])),
                "kept_mass": pa.array(np.full(len(row) + len(used), self.kept_mass)),
            }
        )
        return table.replace_schema_metadata({"sparrow": json.dumps(settings)})

    @classmethod
    def from_table(cls, table: pa.Table) -> AcceptanceHistogram:
        """The inverse of `to_table`, for the rows of one step.

        Raises:
            ValueError: if the table carries no settings or holds several steps.
        """
        import json

        metadata = table.schema.metadata or {}
        if b"sparrow" not in metadata:
            raise ValueError("not an acceptance histogram: the table has no `sparrow` metadata")
        settings = json.loads(metadata[b"sparrow"])
        steps = set(table.column("step").to_pylist())
        if len(steps) > 1:
            raise ValueError(f"one step at a time, not {sorted(steps)}")
        width = settings["bin_width"]
        empty = cls.empty(**settings)
        if not table.num_rows:
            return empty
        row = table.column("bin_start").to_numpy() // width
        column = table.column("acceptance_bin").to_numpy()
        count = table.column("count").to_numpy()
        size = int(row.max()) + 1
        counts = np.zeros((size, ACCEPTANCE_BINS), np.int64)
        sums, prompts = np.zeros(size), np.zeros(size, np.int64)
        summary = column < 0
        counts[row[~summary], column[~summary]] = count[~summary]
        prompts[row[summary]] = count[summary]
        sums[row[summary]] = table.column("sum").to_numpy()[summary]
        kept = float(table.column("kept_mass")[0].as_py())
        return replace(empty, counts=counts, sums=sums, prompts=prompts, kept_mass=kept)
