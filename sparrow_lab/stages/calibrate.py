"""Stage `calibrate`: the acceptance of an untrained sparse actor at many budgets.

`own` trajectories are sampled by each sparse actor itself; `dense` ones are sampled once by the
dense policy and fed to every sparse actor, so that late length bins hold the same texts at every
budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sparrow_kernels.acceptance import acceptance_from_hidden, top_k_from_hidden
from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.pick import make_engine
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.sparsity.curve import curve_rows, pooled_row
from sparrow_lab.sparsity.make import schedule_settings
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages.context import StageContext
from sparrow_lab.tasks import make_task
from sparrow_lab.tasks.base import Prompt, Split, Task
from sparrow_lab.train.measure import (
    TokenTable,
    counts_by_prompt,
    head_of,
    hidden_at,
    recompute,
)
from sparrow_lab.train.trainer import judge

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ints = npt.NDArray[np.int64]

SEED = 20_260_608
"""Noise of calibration: its own, so that a point's seed does not move its schedule."""

Progress = Callable[[int, int, str], None]


def budget_ladder(config: PointConfig, context: int) -> list[int]:
    """Budgets in tokens, whole pages, rising; the last one holds every page of the context.

    Configured budgets are rounded up to pages. Otherwise the ladder is geometric from one page
    above the reserved ones.

    Raises:
        UserError: a configured budget is below the reserved pages.
    """
    size = config.sparsity.page_size
    least = sum(Schedule.dense(size, reserved=config.sparsity.reserved).reserved_pages()) * size
    full = -(-context // size) * size
    wanted = config.calibrate.budgets
    if not wanted:
        low, rungs = min(least + size, full), config.calibrate.ladder
        wanted = [round(low * (full / low) ** (i / (rungs - 1))) for i in range(rungs)]
    budgets = sorted({min(-(-b // size) * size, full) for b in wanted} | {full})
    if budgets[0] < least:
        raise UserError(
            f"the budget {budgets[0]} is below the reserved pages "
            f"({least} tokens at page size {size})",
            "calibrate.budgets",
        )
    return budgets


class Counts(NamedTuple):
    """Non-zero counts of one trajectory and budget; long contexts leave most bins empty."""

    trajectory: str
    budget: int
    prompt: Ints
    length_bin: Ints
    acceptance_bin: Ints
    tokens: Ints


class Meter:
    """Rolls out one model on one split's prompts and measures acceptance.

    Raises:
        UserError: at temperature 0, which has no acceptance, or if no answer has a second token.
    """

    def __init__(
        self, model: PreTrainedModel, task: Task, config: PointConfig, split: Split, samples: int
    ) -> None:
        if config.rollout.temperature <= 0:
            raise UserError("acceptance needs a temperature above 0", "rollout.temperature")
        self.model, self.task, self.config = model, task, config
        self.samples = samples
        self.prompts: list[Prompt] = task.prompts(split, 0, config.calibrate.prompts)
        self.engine = make_engine(
            model, Schedule.dense(config.sparsity.page_size), config.rollout.max_batch
        )
        longest = max(len(p.tokens) for p in self.prompts)
        self.context = longest + task.max_new_tokens
        self.bins = self.context // config.calibrate.bin_width + 1

    def roll(self, schedule: Schedule, like: RolloutBatch | None = None) -> RolloutBatch:
        """Rollouts under a schedule, sampled or fed with the answers of `like`."""
        self.engine.set_schedule(schedule)
        return self.engine.generate(
            [p.tokens for p in self.prompts],
            self.samples,
            self.config.rollout,
            max_new_tokens=self.task.max_new_tokens,
            stop_tokens=self.task.stop_tokens,
            seed=SEED,
            forced=like.answers() if like is not None else None,
        )

    def own(self, batch: RolloutBatch) -> TokenTable:
        """Acceptance by the dense recompute of the batch's own texts."""
        temperature = self.config.rollout.temperature
        return recompute(self.model, batch, temperature, top_k=self._top_k())

    def _top_k(self) -> int | None:
        c = self.config.calibrate
        return c.top_k if c.estimator == "top_k" else None

    @torch.no_grad()
    def against(self, batch: RolloutBatch, dense: RolloutBatch) -> TokenTable:
        """Acceptance against the hidden states of the dense rollout of the same texts."""
        table, mask = TokenTable.empty(batch), batch.valid_NT
        # the dense rollout had room up to the cap
        wide = F.pad(mask, (0, dense.tokens_NT.shape[1] - mask.shape[1]))
        sparse, other = hidden_at(batch, mask), hidden_at(dense, wide)
        head, temperature = head_of(self.model), self.config.rollout.temperature
        top_k, tokens = self._top_k(), batch.tokens_NT[mask]
        if top_k is not None:
            alpha, _ = top_k_from_hidden(sparse, other, head, top_k, temperature)
        else:
            alpha = acceptance_from_hidden(sparse, other, head, tokens, temperature).acceptance
        table.acceptance_NT[mask] = alpha
        return table

    def reward(self, batch: RolloutBatch) -> float:
        """Share of right answers."""
        verdicts = judge(self.task, self.prompts, batch)
        return sum(v.reward for v in verdicts) / len(verdicts)

    def statistics(
        self, batch: RolloutBatch, table: TokenTable, seed: int = 0
    ) -> tuple[list[dict[str, Any]], dict[str, Any], Ints]:
        """Rows by length bin, the pooled row, and the counts behind them."""
        c, counted = self.config.calibrate, batch.counted_NT
        if not counted.any():
            raise UserError(
                "no answer has a second token, and the first token of an answer has no acceptance",
                "task.max_new_tokens",
            )
        counts, sums = counts_by_prompt(batch, table, c.bin_width, self.bins)
        settings: dict[str, Any] = {
            "bootstrap": c.bootstrap,
            "confidence": c.confidence,
            "seed": seed,
            "sums": sums,
        }
        rows = curve_rows(counts, c.bin_width, min_prompts=c.min_prompts, **settings)
        attended, length = batch.attended_NT[counted], batch.length_NT[counted]
        for row in rows:
            here = length // c.bin_width == row["bin_start"] // c.bin_width
            row["kv_tokens"] = float(attended[here].double().mean())
        pooled = pooled_row(counts, **settings)
        pooled["kv_tokens"] = float(attended.double().mean())
        return rows, pooled, counts


def measure_curve(
    model: PreTrainedModel, task: Task, config: PointConfig, progress: Progress
) -> tuple[dict[str, Any], list[Counts]]:
    """The object of `curve.json`, and the counts behind it by trajectory and budget.

    Raises:
        UserError: a budget is below the reserved pages, or see `Meter`.
    """
    c, size = config.calibrate, config.sparsity.page_size
    meter = Meter(model, task, config, "calibrate", c.samples)
    budgets = budget_ladder(config, meter.context)
    total = 1 + len(budgets) * len(c.trajectories)
    progress(0, total, "dense rollout")
    dense = meter.roll(Schedule.dense(size))
    _, ceiling, _ = meter.statistics(dense, meter.own(dense))
    rows: list[dict[str, Any]] = []
    pooled: list[dict[str, Any]] = []
    kept: list[Counts] = []
    done = 1
    for trajectory in c.trajectories:
        for budget in budgets:
            progress(done, total, f"{trajectory} trajectories, budget {budget}")
            schedule = Schedule.fixed(budget, size, **schedule_settings(config.sparsity))
            if trajectory == "own":
                batch = meter.roll(schedule)
                table = meter.own(batch)
            else:
                batch = meter.roll(schedule, like=dense)
                table = meter.against(batch, dense)
            by_bin, whole, counts = meter.statistics(batch, table)
            name = {"trajectory": trajectory, "budget": budget}
            rows += [{**name, **row} for row in by_bin]
            pooled.append({**name, **whole, "reward": meter.reward(batch)})
            prompt, row, column = np.nonzero(counts)
            kept.append(
                Counts(trajectory, budget, prompt, row, column, counts[prompt, row, column])
            )
            done += 1
    progress(total, total, "measured")
    reserved = Schedule.dense(size, reserved=config.sparsity.reserved).reserved_pages()
    curve = {
        "schema": 1,
        "model": config.model.name,
        "page_size": size,
        "bin_width": c.bin_width,
        "context": meter.context,
        "ceiling": {"p05": ceiling["p05"], "mean": ceiling["mean"]},
        "dense_reward": meter.reward(dense),
        "reserved_tokens": sum(reserved) * size,
        "rows": rows,
        "pooled": pooled,
        "settings": {
            "prompts": c.prompts,
            "samples": c.samples,
            "temperature": config.rollout.temperature,
            "estimator": c.estimator,
            "top_k": c.top_k if c.estimator == "top_k" else None,
            "sparsity": config.sparsity.model_dump(exclude={"schedule"}),
        },
    }
    return curve, kept


def counts_table(kept: Sequence[Counts], bin_width: int) -> bytes:
    """Parquet of all non-zero counts, so that any percentile can be taken again later."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for part in kept:
        size = len(part.tokens)
        parts.append(
            pa.table(
                {
                    "trajectory": pa.array([part.trajectory] * size, pa.string()),
                    "budget": pa.array(np.full(size, part.budget, np.int64)),
                    "prompt": pa.array(part.prompt),
                    "bin_start": pa.array(part.length_bin * bin_width),
                    "acceptance_bin": pa.array(part.acceptance_bin),
                    "count": pa.array(part.tokens),
                }
            )
        )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(parts), sink, compression="zstd")
    return bytes(sink.getvalue())


def run(ctx: StageContext) -> dict[str, Any]:
    """Measure the curve and write `curve.json` and `acceptance.parquet`."""

    def progress(done: int, total: int, note: str) -> None:
        ctx.check()
        print(f"{done}/{total} {note}", flush=True)
        ctx.progress(done, total, note)

    model, tokenizer = load_model(ctx.config.model)
    task = make_task(ctx.config.task, tokenizer)
    curve, kept = measure_curve(model, task, ctx.config, progress)
    table = counts_table(kept, ctx.config.calibrate.bin_width)
    ctx.folder.write_bytes("acceptance.parquet", table)
    write_json(ctx.folder.path / "curve.json", curve)
    metrics = {
        "acceptance/ceiling_p05": curve["ceiling"]["p05"],
        "acceptance/ceiling_mean": curve["ceiling"]["mean"],
        "evaluate/reward": curve["dense_reward"],
    }
    return {"metrics": metrics, "time": {}}
