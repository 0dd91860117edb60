"""One GRPO step: sparse rollout, dense recompute, exact acceptance, one or more updates.

With one minibatch and one epoch the dense recompute is the forward pass of the update itself.
Groups of equal rewards carry no gradient: they are only measured.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sparrow_lab.acceptance.histogram import AcceptanceHistogram
from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.pick import make_engine
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.tasks.base import Prompt, Task, Verdict
from sparrow_lab.train.forward import dense_hidden
from sparrow_lab.train.grpo import (
    TokenWeights,
    group_advantages,
    importance_weights,
    policy_loss,
    reference_kl,
    token_shares,
)
from sparrow_lab.train.measure import (
    TokenTable,
    compare,
    head_of,
    histogram_of,
    recompute,
    token_logp,
)
from sparrow_lab.train.packing import pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EVALUATION_SEED = 2**31
"""Added to the run's seed for the noise of evaluations, so they never repeat training's."""


@dataclass
class StepResult:
    """Metrics and acceptance of one step."""

    metrics: dict[str, float]
    histogram: AcceptanceHistogram


@dataclass
class _Update:
    """What the updates of a step need, and what they gather."""

    batch: RolloutBatch
    table: TokenTable
    advantage_N: Tensor
    live: list[int]
    importance_max: float | None = None
    importance_sum: float = 0.0
    importance_clipped: float = 0.0
    importance_tokens: int = 0
    loss: float = 0.0


class Trainer:
    """A policy in training: model, optimizer and rollout engine of one run."""

    def __init__(
        self, model: PreTrainedModel, task: Task, schedule: Schedule, config: PointConfig
    ) -> None:
        if config.rollout.temperature <= 0:
            raise UserError("training needs a temperature above 0", "rollout.temperature")
        self.model, self.task, self.schedule, self.config = model, task, schedule, config
        self.engine = make_engine(model, schedule, config.rollout.max_batch, trains=True)
        t = config.train
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=t.lr, betas=t.betas, weight_decay=t.weight_decay
        )
        self.reference = copy.deepcopy(model).eval() if t.kl_coef > 0 else None

    def step(self, step: int) -> StepResult:
        """Run step `step` (0-based); everything random in it is keyed by (seed, step)."""
        config, t = self.config, self.config.train
        began = time.perf_counter()
        prompts = self.task.prompts("train", step * t.prompts, t.prompts, config.seed)
        count = t.prompts * t.samples
        batch = self.engine.generate(
            [p.tokens for p in prompts],
            t.samples,
            config.rollout,
            max_new_tokens=self.task.max_new_tokens,
            stop_tokens=self.task.stop_tokens,
            seed=config.seed,
            sample_ids=step * count + np.arange(count, dtype=np.int64),
        )
        verdicts = judge(self.task, prompts, batch)
        told = [v.reward for v in verdicts]
        rewards = torch.tensor(told, dtype=batch.logp_NT.dtype, device=batch.logp_NT.device)
        advantage, same = group_advantages(rewards, t.samples, t.advantage_std)
        rolled = time.perf_counter()
        self.model.train()
        update, grad_norm = self._update(step, batch, advantage)
        self.engine.refresh()
        ended = time.perf_counter()
        histogram = histogram_of(
            batch, update.table, config.calibrate.bin_width, config.rollout.temperature
        )
        metrics = {
            **reward_metrics(verdicts),
            **response_metrics(batch),
            **acceptance_metrics(histogram),
            **_token_metrics(batch, update),
            "group/zero_variance": same,
            "policy/grad_norm": grad_norm,
            "policy/loss": update.loss,
            "rollout/tokens_per_s": float(batch.generated_N.sum()) / max(batch.seconds, 1e-9),
            "time/rollout_s": rolled - began,
            "time/train_s": ended - rolled,
            "time/step_s": ended - began,
        }
        return StepResult(metrics, histogram)

    def _update(self, step: int, batch: RolloutBatch, advantage_N: Tensor) -> tuple[_Update, float]:
        t = self.config.train
        everyone = list(range(len(advantage_N)))
        needs_all = self.reference is not None
        live = [s for s, teaches in enumerate(advantage_N.tolist()) if needs_all or teaches]
        temperature = self.config.rollout.temperature
        once = t.minibatches == 1 and t.epochs == 1
        measured = sorted(set(everyone) - set(live)) if once else everyone
        table = recompute(self.model, batch, temperature, measured)
        update = _Update(batch, table, advantage_N, live)
        norms = [0.0]
        for epoch in range(t.epochs):
            for members in self._minibatches(step, epoch, len(everyone)):
                self.optimizer.zero_grad(set_to_none=True)
                self._accumulate(update, members, fresh=once)
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), t.grad_clip)
                norms.append(float(norm))
                warm = min(1.0, (step + 1) / t.warmup_steps) if t.warmup_steps else 1.0
                for group in self.optimizer.param_groups:
                    group["lr"] = t.lr * warm
                # a step on a gradient of NaN would end the run; the metric still shows it
                if np.isfinite(norms[-1]):
                    self.optimizer.step()
        return update, max(norms) if np.isfinite(norms).all() else float("nan")

    def _minibatches(self, step: int, epoch: int, count: int) -> list[list[int]]:
        t = self.config.train
        if t.minibatches == 1:
            return [list(range(count))]
        key = np.random.SeedSequence([self.config.seed, step, epoch])
        order = np.random.Generator(np.random.Philox(key)).permutation(count)
        return [sorted(part.tolist()) for part in np.array_split(order, t.minibatches)]

    def _accumulate(self, update: _Update, members: list[int], fresh: bool) -> None:
        """Add the gradient of one minibatch; `fresh` takes old log-probs from this very pass."""
        batch, config = update.batch, self.config
        chosen = torch.zeros_like(batch.generated_N, dtype=torch.bool)
        chosen[members] = True
        alive = set(update.live)
        live = [s for s in members if s in alive]
        for rows in pack(batch, live):
            hidden = dense_hidden(self.model, rows)
            at = (rows.sample_X, rows.column_X)
            temperature, tokens = config.rollout.temperature, batch.tokens_NT[at]
            logp = token_logp(hidden, head_of(self.model), tokens, temperature)
            if fresh:
                with torch.no_grad():
                    head = head_of(self.model)
                    stats = compare(batch, rows, hidden, head, temperature)
                    update.table.put(rows, stats)
            old = logp.detach() if fresh else update.table.logp_dense_NT[at]
            weight = importance_weights(old, batch.logp_NT[at], config.train.tis_cap)
            _note_importance(update, old - batch.logp_NT[at], weight, config.train.tis_cap)
            share = token_shares(
                rows.sample_X, batch.generated_N, chosen, config.train, self.task.max_new_tokens
            ).to(logp.dtype)
            fixed = TokenWeights(update.advantage_N[rows.sample_X], old, weight, share)
            loss = policy_loss(logp, fixed, config.train)
            if self.reference is not None:
                with torch.no_grad():
                    hidden = dense_hidden(self.reference, rows)
                    reference = token_logp(hidden, head_of(self.reference), tokens, temperature)
                loss = loss + config.train.kl_coef * reference_kl(logp, reference, share)
            torch.autograd.backward(loss)
            update.loss += float(loss.detach())

    def evaluate(
        self, count: int, start: int = 0, schedule: Schedule | None = None
    ) -> tuple[dict[str, float], RolloutBatch]:
        """One answer each to held-out prompts `start ..`, by the dense policy or a schedule."""
        began = time.perf_counter()
        self.model.eval()
        prompts = self.task.prompts("evaluate", start, count)
        dense = Schedule.dense(self.schedule.page_size)
        self.engine.set_schedule(schedule or dense)
        batch = self.engine.generate(
            [p.tokens for p in prompts],
            1,
            self.config.rollout,
            max_new_tokens=self.task.max_new_tokens,
            stop_tokens=self.task.stop_tokens,
            seed=self.config.seed + EVALUATION_SEED,
            sample_ids=np.arange(start, start + count, dtype=np.int64),
            keep_hidden=schedule is not None,
        )
        self.engine.set_schedule(self.schedule)
        verdicts = judge(self.task, prompts, batch)
        metrics = {
            "evaluate/reward": sum(v.reward for v in verdicts) / len(verdicts),
            "evaluate/unparsable": verdicts.count(Verdict.UNPARSABLE) / len(verdicts),
            "evaluate/length_mean": float(batch.generated_N.double().mean()),
            "time/evaluate_s": time.perf_counter() - began,
        }
        return metrics, batch


def _note_importance(update: _Update, log_ratio: Tensor, weight: Tensor, cap: float | None) -> None:
    ratio = log_ratio.exp()
    update.importance_sum += float(weight.sum())
    update.importance_tokens += len(weight)
    update.importance_clipped += 0.0 if cap is None else float((ratio > cap).sum())
    update.importance_max = max(update.importance_max or 0.0, float(ratio.max()))


def judge(task: Task, prompts: list[Prompt], batch: RolloutBatch) -> list[Verdict]:
    """The verdict of each sample."""
    owners = batch.prompt_N.tolist()
    return [task.judge(prompts[p], a) for p, a in zip(owners, batch.answers(), strict=True)]


def reward_metrics(verdicts: list[Verdict]) -> dict[str, float]:
    """Mean reward and the share of each verdict."""
    total = len(verdicts)
    shares = {f"reward/{v.value}": verdicts.count(v) / total for v in Verdict}
    return {"reward/mean": sum(v.reward for v in verdicts) / total, **shares}


def response_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Length of the answers and the KV that they attended to."""
    counted = batch.counted_NT
    attended = batch.attended_NT[counted].double()
    return {
        "response/length_mean": float(batch.generated_N.double().mean()),
        "response/truncated": float((~batch.finished_N).double().mean()),
        "rollout/kv_tokens_mean": float(attended.mean()) if len(attended) else float("nan"),
    }


def acceptance_metrics(histogram: AcceptanceHistogram) -> dict[str, float]:
    """Percentiles of acceptance, pooled and by length bin; NaN when nothing was counted."""
    out = {
        f"acceptance/{name}": histogram.percentile(q)
        for name, q in (("p01", 0.01), ("p05", 0.05), ("p10", 0.10), ("p50", 0.50))
    }
    out["acceptance/mean"] = histogram.mean()
    for i, start in enumerate(histogram.bin_starts()):
        if histogram.tokens(i):
            out[f"acceptance/bin_{start}/p05"] = histogram.percentile(0.05, i)
            out[f"acceptance/bin_{start}/mean"] = histogram.mean(i)
            out[f"acceptance/bin_{start}/tokens"] = float(histogram.tokens(i))
    return out


def _token_metrics(batch: RolloutBatch, update: _Update) -> dict[str, float]:
    """Entropy and divergence over all generated tokens, importance weights over those that teach.

    Without any of the latter the weights are given as 1.
    """
    valid, table = batch.valid_NT, update.table
    tokens = max(update.importance_tokens, 1)
    return {
        "policy/entropy": float(table.entropy_NT[valid].double().mean()),
        "policy/kl_rollout": float(table.kl_NT[valid].double().mean()),
        "importance/mean": update.importance_sum / tokens if update.importance_tokens else 1.0,
        "importance/max": 1.0 if update.importance_max is None else update.importance_max,
        "importance/clipped": update.importance_clipped / tokens,
    }
