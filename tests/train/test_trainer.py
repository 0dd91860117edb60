"""A training step against the plain formula: the same gradient, the same update."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.runs.metric_names import check as check_name
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.tasks.base import Verdict
from sparrow_lab.train.measure import histogram_of, recompute
from sparrow_lab.train.trainer import Trainer
from tests.rollout.small_models import own_copy, small_model
from tests.train.plain import assert_close, gradients, sample_logp
from tests.train.toy_task import STOPS, ToyTask

SPARSE = Schedule.fixed(12, 4, dense_layers=0)
LR = 1e-3


def make_config(**sections: Any) -> PointConfig:
    """Two prompts of four samples, no clipping of gradients, lr 1e-3."""
    train = {"prompts": 2, "samples": 4, "lr": LR, "grad_clip": 1e9, **sections.pop("train", {})}
    return PointConfig.model_validate({"train": train, "seed": 5, **sections})


def make_trainer(
    config: PointConfig, task: ToyTask | None = None, schedule: Schedule = SPARSE, **model: Any
) -> Trainer:
    policy = own_copy(small_model(**{"family": "qwen3", "group": 2, **model}))
    return Trainer(policy, task or ToyTask(), schedule, config)


def rollout_of(trainer: Trainer, step: int = 0) -> RolloutBatch:
    """The rollout that the next step will make, from another engine."""
    t, config = trainer.config.train, trainer.config
    prompts = trainer.task.prompts("train", step * t.prompts, t.prompts, config.seed)
    count = t.prompts * t.samples
    return RolloutEngine(trainer.model, trainer.schedule).generate(
        [p.tokens for p in prompts],
        t.samples,
        config.rollout,
        max_new_tokens=trainer.task.max_new_tokens,
        stop_tokens=trainer.task.stop_tokens,
        seed=config.seed,
        sample_ids=step * count + np.arange(count),
    )


def plain_advantages(batch: RolloutBatch, config: PointConfig) -> list[float]:
    rewards = [float(sum(a) % 2 == 0) for a in batch.answers()]
    out: list[float] = []
    for group in np.reshape(rewards, (-1, config.train.samples)).tolist():
        spread = np.std(group, ddof=1) + 1e-6 if config.train.advantage_std else 1.0
        same = len(set(group)) == 1
        out += [0.0 if same else float((r - np.mean(group)) / spread) for r in group]
    return out


def plain_loss(
    model: Any,
    batch: RolloutBatch,
    config: PointConfig,
    members: Sequence[int],
    old: list[Tensor],
    longest: int,
    reference: Any = None,
) -> Tensor:
    """The GRPO objective, sample by sample and token by token as the paper writes it."""
    t, temperature = config.train, config.rollout.temperature
    advantages = plain_advantages(batch, config)
    lengths = batch.generated_N.tolist()
    total = sum(lengths[s] for s in members)
    loss = torch.zeros((), dtype=torch.float64)
    for s in members:
        logp = sample_logp(model, batch, s, temperature)
        for j in range(lengths[s]):
            share = {
                "token": 1 / total,
                "sequence": 1 / (len(members) * lengths[s]),
                "fixed_length": 1 / (len(members) * longest),
            }[t.loss_average]
            ratio = (logp[j] - old[s][j]).exp()
            clipped = ratio.clamp(1 - t.clip_low, 1 + t.clip_high)
            objective = torch.minimum(ratio * advantages[s], clipped * advantages[s])
            if t.dual_clip is not None and advantages[s] < 0:
                objective = torch.maximum(
                    objective, torch.tensor(t.dual_clip * advantages[s], dtype=torch.float64)
                )
            importance = 1.0
            if t.tis_cap is not None:
                importance = min(math.exp(old[s][j] - batch.logp_NT[s, j]), t.tis_cap)
            loss = loss - share * importance * objective
            if reference is not None:
                with torch.no_grad():
                    gap = sample_logp(reference, batch, s, temperature)[j]
                gap = gap - logp[j]
                loss = loss + t.kl_coef * share * (gap.exp() - gap - 1)
    return loss


def old_logps(model: Any, batch: RolloutBatch, temperature: float) -> list[Tensor]:
    with torch.no_grad():
        return [sample_logp(model, batch, s, temperature) for s in range(len(batch.generated_N))]


# ------------------------------------------------------------------ one update
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"loss_average": "sequence"}},
        {"train": {"loss_average": "fixed_length", "advantage_std": False}},
        {"train": {"tis_cap": None}},
        {"train": {"tis_cap": 1.01, "dual_clip": 1.5}},
        {"rollout": {"temperature": 0.7}},
        {"rollout": {"top_p": 0.8}},
        {"train": {"prompts": 3, "samples": 5}},
    ],
    ids=str,
)
def test_one_minibatch_has_the_gradient_of_the_formula(sections: dict[str, Any]) -> None:
    config = make_config(**sections)
    trainer = make_trainer(config)
    before: Any = own_copy(trainer.model)
    batch = rollout_of(trainer)
    assert any(plain_advantages(batch, config)), "no group varies: the test would be empty"
    old = old_logps(before, batch, config.rollout.temperature)
    loss = plain_loss(before, batch, config, range(len(old)), old, trainer.task.max_new_tokens)
    loss.backward()
    result = trainer.step(0)
    assert_close(gradients(trainer.model), gradients(before))
    norm = math.sqrt(sum(float(g.pow(2).sum()) for g in gradients(before).values()))
    assert result.metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert result.metrics["policy/loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_kl_to_the_reference_acts_on_every_group(average: str) -> None:
    """The policy is moved first, since k3 has no gradient at its reference."""
    config = make_config(train={"kl_coef": 0.3, "loss_average": average, "prompts": 3})
    for always in (None, Verdict.WRONG):
        trainer = make_trainer(config, ToyTask(verdict=always))
        reference: Any = own_copy(trainer.model)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight.mul_(1.05)
        trainer.engine.refresh()
        moved: Any = own_copy(trainer.model)
        batch = rollout_of(trainer)
        old = old_logps(moved, batch, 1.0)
        cap = trainer.task.max_new_tokens
        loss = plain_loss(moved, batch, config, range(12), old, cap, reference)
        if always is not None:
            loss = loss - plain_loss(moved, batch, config, range(12), old, cap)
        loss.backward()
        trainer.step(0)
        assert max(float(g.abs().max()) for g in gradients(moved).values()) > 1e-4
        assert_close(gradients(trainer.model), gradients(moved))


def plain_updates(
    trainer: Trainer, parts_by_epoch: Sequence[Sequence[Sequence[int]]]
) -> dict[str, Tensor]:
    """Weights after AdamW steps on these minibatches of the coming rollout."""
    config, model = trainer.config, own_copy(trainer.model)
    batch = rollout_of(trainer)
    old = old_logps(model, batch, config.rollout.temperature)
    t = config.train
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.lr, betas=t.betas, weight_decay=t.weight_decay
    )
    for parts in parts_by_epoch:
        for members in parts:
            optimizer.zero_grad()
            loss = plain_loss(model, batch, config, members, old, trainer.task.max_new_tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), t.grad_clip)
            optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_epochs_keep_the_old_policy_and_clip() -> None:
    config = make_config(train={"epochs": 3, "lr": 0.02, "weight_decay": 0.1, "grad_clip": 0.5})
    trainer = make_trainer(config)
    expected = plain_updates(trainer, [[range(8)]] * 3)
    result = trainer.step(0)
    assert_close(weights(trainer), expected, 1e-8)
    assert result.metrics["importance/clipped"] >= 0


def test_minibatches_use_every_sample_once_in_a_seeded_order() -> None:
    """Two halves of four samples: the update is that of exactly one ordered split."""
    train = {"prompts": 1, "samples": 4, "minibatches": 2, "lr": 0.02}
    config = make_config(train=train)
    trainer = make_trainer(config)
    splits = list(itertools.combinations(range(4), 2))
    told = [
        plain_updates(trainer, [[half, [s for s in range(4) if s not in half]]]) for half in splits
    ]
    trainer.step(0)
    after = weights(trainer)
    gaps = [max(float((after[k] - w[k]).abs().max()) for k in after) for w in told]
    assert min(gaps) < 1e-8 < sorted(gaps)[1]
    again = make_trainer(config)
    again.step(0)
    assert all(torch.equal(after[k], v) for k, v in weights(again).items())


def test_more_minibatches_than_samples_still_work() -> None:
    trainer = make_trainer(make_config(train={"prompts": 1, "samples": 2, "minibatches": 4}))
    result = trainer.step(0)
    assert math.isfinite(result.metrics["policy/grad_norm"])


def test_warmup_raises_the_learning_rate_by_step() -> None:
    """One group in step 0: AdamW's first update is lr * sign(gradient)."""
    moved = {}
    for warmup in (0, 4):
        trainer = make_trainer(make_config(train={"warmup_steps": warmup}))
        before = weights(trainer)
        trainer.step(0)
        after = weights(trainer)
        moved[warmup] = max(float((after[k] - before[k]).abs().max()) for k in after)
    assert moved[0] == pytest.approx(LR, rel=1e-3)
    assert moved[4] == pytest.approx(LR / 4, rel=1e-3)


# ------------------------------------------------------------------ degenerate groups
@pytest.mark.parametrize("verdict", [Verdict.RIGHT, Verdict.WRONG])
@pytest.mark.parametrize("train", [{}, {"minibatches": 2, "epochs": 2}, {"weight_decay": 0.1}])
def test_equal_rewards_everywhere_change_nothing(verdict: Verdict, train: dict[str, Any]) -> None:
    trainer = make_trainer(make_config(train=train), ToyTask(verdict=verdict))
    before = weights(trainer)
    metrics = trainer.step(0).metrics
    assert all(torch.equal(before[k], v) for k, v in weights(trainer).items())
    assert metrics["group/zero_variance"] == 1.0
    assert metrics["policy/grad_norm"] == 0.0 and metrics["policy/loss"] == 0.0
    assert metrics["reward/mean"] == verdict.reward
    for name in ("acceptance/p05", "policy/entropy", "policy/kl_rollout", "importance/mean"):
        assert math.isfinite(metrics[name]), name


def test_a_gradient_of_nan_is_shown_and_not_taken() -> None:
    trainer = make_trainer(make_config())
    trainer.model.lm_head.weight.register_hook(lambda g: g * math.nan)
    before = weights(trainer)
    metrics = trainer.step(0).metrics
    assert math.isnan(metrics["policy/grad_norm"])
    assert all(torch.equal(before[k], v) for k, v in weights(trainer).items())


def test_greedy_training_is_refused() -> None:
    with pytest.raises(UserError, match="temperature above 0"):
        make_trainer(make_config(rollout={"temperature": 0.0}))


def test_answers_of_one_token_have_no_acceptance_and_break_nothing() -> None:
    result = make_trainer(make_config(), ToyTask(max_new_tokens=1)).step(0)
    assert result.histogram.tokens() == 0
    assert math.isnan(result.metrics["acceptance/p05"])
    assert math.isnan(result.metrics["rollout/kv_tokens_mean"])
    assert math.isfinite(result.metrics["policy/grad_norm"])
    assert math.isfinite(result.metrics["policy/entropy"])


# ------------------------------------------------------------------ what is measured
@pytest.mark.parametrize("train", [{}, {"minibatches": 2}], ids=str)
def test_metrics_of_a_step_by_hand(train: dict[str, Any]) -> None:
    config = make_config(train={"prompts": 4, "tis_cap": 1.2, **train})
    trainer = make_trainer(config)
    batch = rollout_of(trainer)
    table = recompute(trainer.model, batch, 1.0)
    model: Any = own_copy(trainer.model)
    old = old_logps(model, batch, 1.0)
    result = trainer.step(0)
    metrics = result.metrics
    counted, valid = batch.counted_NT, batch.valid_NT
    alpha = table.acceptance_NT[counted].numpy()
    assert metrics["acceptance/mean"] == pytest.approx(alpha.mean(), abs=1e-9)
    for name, q in (("p01", 0.01), ("p05", 0.05), ("p10", 0.1), ("p50", 0.5)):
        exact = float(np.quantile(alpha, q, method="inverted_cdf"))
        assert metrics[f"acceptance/{name}"] == pytest.approx(exact, abs=0.001)
    again = histogram_of(batch, table, config.calibrate.bin_width, 1.0)
    assert np.array_equal(result.histogram.counts, again.counts)
    bins = [k for k in metrics if k.startswith("acceptance/bin_") and k.endswith("/tokens")]
    assert sum(metrics[k] for k in bins) == counted.sum()
    assert metrics["policy/entropy"] == pytest.approx(float(table.entropy_NT[valid].mean()))
    assert metrics["policy/kl_rollout"] == pytest.approx(float(table.kl_NT[valid].mean()))
    answers = batch.answers()
    verdicts = [trainer.task.judge(trainer.task.prompts("train", 0, 1)[0], a) for a in answers]
    for v in Verdict:
        assert metrics[f"reward/{v.value}"] == verdicts.count(v) / 16
    assert metrics["reward/mean"] == metrics["reward/right"]
    assert metrics["response/length_mean"] == np.mean([len(a) for a in answers])
    assert metrics["response/truncated"] == np.mean([a[-1] not in STOPS for a in answers])
    attended = batch.attended_NT[counted].double().mean()
    assert metrics["rollout/kv_tokens_mean"] == pytest.approx(float(attended))
    advantages = plain_advantages(batch, config)
    live = [s for s in range(16) if advantages[s] != 0]
    ratios = np.concatenate([(old[s] - batch.logp_NT[s, : len(old[s])]).exp() for s in live])
    assert metrics["importance/max"] == pytest.approx(ratios.max())
    assert metrics["importance/mean"] == pytest.approx(np.minimum(ratios, 1.2).mean())
    assert metrics["importance/clipped"] == pytest.approx((ratios > 1.2).mean())
    for name in metrics:
        check_name(name)


def test_importance_off_counts_nothing_as_clipped() -> None:
    metrics = make_trainer(make_config(train={"tis_cap": None})).step(0).metrics
    assert metrics["importance/clipped"] == 0.0
    assert metrics["importance/mean"] == 1.0


def test_a_dense_rollout_has_acceptance_1_and_no_mismatch() -> None:
    metrics = make_trainer(make_config(), schedule=Schedule.dense(4)).step(0).metrics
    assert metrics["acceptance/p01"] > 0.9999
    assert metrics["importance/max"] == pytest.approx(1.0, abs=1e-9)
    assert abs(metrics["policy/kl_rollout"]) < 1e-9


# ------------------------------------------------------------------ repeatable, held out
def test_the_same_seed_gives_the_same_numbers() -> None:
    def numbers(seed: int) -> list[float]:
        config = make_config(seed=seed, train={"minibatches": 2, "epochs": 2})
        trainer = make_trainer(config, dtype=torch.float32)
        out = []
        for step in range(3):
            metrics = trainer.step(step).metrics | trainer.evaluate(4)[0]
            timed = ("time/", "rollout/tokens_per_s")
            out += [v for k, v in sorted(metrics.items()) if not k.startswith(timed)]
        return out

    first = numbers(1)
    assert numbers(1) == first
    assert numbers(2) != first


def test_prompts_and_noise_of_each_step_are_new() -> None:
    task = ToyTask()
    trainer = make_trainer(make_config(), task)
    for step in range(3):
        trainer.step(step)
    assert task.asked == [("train", 0, 2, 5), ("train", 2, 2, 5), ("train", 4, 2, 5)]
    late = make_trainer(make_config())
    batch = rollout_of(late, 7)
    table = recompute(late.model, batch, 1.0)
    told = histogram_of(batch, table, late.config.calibrate.bin_width, 1.0)
    assert late.step(7).histogram.counts.tolist() == told.counts.tolist()


def test_evaluation_is_dense_on_held_out_prompts_and_leaves_no_trace() -> None:
    config = make_config()
    task = ToyTask()
    trainer = make_trainer(config, task)
    before = weights(trainer)
    metrics, batch = trainer.evaluate(6)
    assert task.asked == [("evaluate", 0, 6, 0)]
    train = {p.id for p in task.prompts("train", 0, 1000, 5)}
    assert not train & {p.id for p in task.prompts("evaluate", 0, 6)}
    assert torch.equal(batch.attended_NT[batch.counted_NT], batch.length_NT[batch.counted_NT])
    right = [task.judge(task.prompts("evaluate", 0, 1)[0], a).reward for a in batch.answers()]
    assert metrics["evaluate/reward"] == np.mean(right)
    assert metrics["evaluate/length_mean"] == np.mean([len(a) for a in batch.answers()])
    assert all(torch.equal(before[k], v) for k, v in weights(trainer).items())
    sparse, _ = trainer.evaluate(6, schedule=SPARSE)
    assert sparse["evaluate/length_mean"] > 0
    fresh = make_trainer(config)
    assert trainer.step(0).histogram.sums.tolist() == fresh.step(0).histogram.sums.tolist()


def test_evaluation_noise_is_not_trainings() -> None:
    """The same prompt, sample and position are drawn with other noise when evaluated."""
    trainer = make_trainer(make_config())
    prompts = trainer.task.prompts("evaluate", 0, 8)
    drawn = trainer.evaluate(8)[1].answers()
    with_trainings = RolloutEngine(trainer.model, Schedule.dense(4)).generate(
        [p.tokens for p in prompts],
        1,
        trainer.config.rollout,
        max_new_tokens=7,
        stop_tokens=STOPS,
        seed=trainer.config.seed,
    )
    assert drawn != with_trainings.answers()
