from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.acceptance.histogram import ACCEPTANCE_BINS, acceptance_bin
from sparrow_lab.config.schema import ReservedConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.calibration import Curve, cheapest_schedule, curve_rows, isotonic
from sparrow_lab.sparsity.schedule import DENSE

NAN = float("nan")
BUDGETS = (64, 128, 256, 512)


def curve(values: list[list[float]], low: list[list[float]] | None = None, **changes: int) -> Curve:
    """A curve with one row a budget and one column a bin of 100 tokens, 20 prompts each."""
    value = np.array(values, float)
    lower = value - 0.02 if low is None else np.array(low, float)
    return Curve(
        page_size=changes.get("page_size", 16),
        bin_width=100,
        budgets=np.array(BUDGETS[: len(values)]),
        bin_starts=np.arange(value.shape[1]) * 100 + changes.get("start", 0),
        value=value,
        low=lower,
        high=value + 0.02,
        prompts=np.where(np.isnan(value), 0, 20),
    )


FALLING = curve([[0.90, 0.70, 0.60], [0.95, 0.87, 0.70], [0.97, 0.92, 0.88], [1.0, 0.99, 0.97]])


def test_least_budget_that_reaches_tau_in_each_bin() -> None:
    choice = cheapest_schedule(FALLING, 0.86, model="tiny-s")
    assert choice.schedule.edges == (0, 100, 200)
    assert choice.schedule.budgets == (64, 128, 256)
    assert choice.schedule.name == "tau=0.86" and choice.schedule.tau == 0.86
    assert choice.schedule.model == "tiny-s"
    assert [(b.needed, b.value) for b in choice.bins] == [(64, 0.9), (128, 0.87), (256, 0.88)]
    assert choice.measured_to == 300 and not choice.unreached and not choice.undecided


def test_the_lower_end_asks_for_more() -> None:
    choice = cheapest_schedule(FALLING, 0.865, "lower")
    assert choice.schedule.budgets == (64, 256, 512)
    assert cheapest_schedule(FALLING, 0.86, "lower").schedule.budgets == (64, 256)


def test_lower_without_intervals_is_refused() -> None:
    none = curve(FALLING.value.tolist(), np.full((4, 3), NAN).tolist())
    with pytest.raises(UserError, match="bootstrap > 0"):
        cheapest_schedule(none, 0.86, "lower")


def test_budgets_never_fall_with_length() -> None:
    hump = curve([[0.9, 0.7, 0.9], [0.95, 0.8, 0.95], [0.99, 0.9, 0.99]])
    choice = cheapest_schedule(hump, 0.86)
    assert choice.schedule.budgets == (64, 256) and choice.schedule.edges == (0, 100)
    assert [b.needed for b in choice.bins] == [64, 256, 64]
    assert choice.bins[2].budget == 256 and choice.bins[2].value == 0.99


def test_one_noisy_dip_does_not_send_the_choice_up() -> None:
    dip = curve([[0.70], [0.868], [0.855], [0.95]])
    assert cheapest_schedule(dip, 0.86).schedule.budgets == (128,)


def test_one_lucky_small_budget_is_not_believed() -> None:
    lucky = curve([[0.88], [0.60], [0.87], [0.95]])
    assert cheapest_schedule(lucky, 0.86).schedule.budgets == (256,)


def test_a_bin_that_nothing_reaches_gets_full_attention_and_says_so() -> None:
    choice = cheapest_schedule(FALLING, 0.98)
    assert choice.schedule.budgets == (512, DENSE) and choice.schedule.edges == (0, 200)
    assert choice.unreached == (200,)
    last = choice.bins[-1]
    assert last.needed is None and last.reason == "unreached" and np.isnan(last.value)


def test_a_late_bin_of_small_budgets_only_is_undecided() -> None:
    late = curve([[0.9, 0.5], [0.95, 0.6], [0.97, NAN], [1.0, NAN]])
    choice = cheapest_schedule(late, 0.86)
    assert choice.schedule.budgets == (64, 256)
    assert choice.undecided == (100,) and choice.unreached == ()


def test_a_bin_without_data_between_keeps_the_budget_before_it() -> None:
    gap = curve([[0.9, NAN, 0.7], [0.95, NAN, 0.9]])
    choice = cheapest_schedule(gap, 0.86)
    assert choice.schedule.edges == (0, 200) and choice.schedule.budgets == (64, 128)
    assert [b.start for b in choice.bins] == [0, 200]


def test_lengths_outside_the_data_take_the_nearest_budget() -> None:
    shifted = curve([[0.7, 0.7], [0.9, 0.8], [0.95, 0.9]], start=300)
    schedule = cheapest_schedule(shifted, 0.86).schedule
    assert schedule.budget_at(0) == schedule.budget_at(300) == 128
    assert schedule.budget_at(400) == schedule.budget_at(10**6) == 256


def test_levels_that_come_out_alike_share_a_digest() -> None:
    low, high = cheapest_schedule(FALLING, 0.855), cheapest_schedule(FALLING, 0.865)
    assert low.schedule.digest == high.schedule.digest
    assert low.schedule.name != high.schedule.name
    assert cheapest_schedule(FALLING, 0.9).schedule.digest != low.schedule.digest


def test_settings_reach_the_schedule_and_its_checks() -> None:
    reserved = ReservedConfig(first_tokens=60, last_tokens=60)
    with pytest.raises(UserError, match="below the reserved pages"):
        cheapest_schedule(FALLING, 0.86, reserved=reserved)
    made = cheapest_schedule(FALLING, 0.86, landmark="minmax", dense_layers=1).schedule
    assert made.landmark == "minmax" and made.dense_layers == 1


def test_nothing_to_choose_from() -> None:
    with pytest.raises(UserError, match="no length bin that enough prompts reached"):
        cheapest_schedule(curve([[NAN, NAN]]), 0.86)
    for tau in (0.0, 1.01, NAN):
        with pytest.raises(UserError, match="tau must be above 0"):
            cheapest_schedule(FALLING, tau)


@given(
    st.integers(1, 6).flatmap(
        lambda bins: st.lists(
            st.lists(st.floats(0, 1), min_size=bins, max_size=bins), min_size=1, max_size=4
        )
    ),
    st.floats(0.01, 1),
)
def test_of_monotone_curves_no_cheaper_schedule_reaches_tau(
    values: list[list[float]], tau: float
) -> None:
    table = np.maximum.accumulate(np.array(values), axis=0)
    choice = cheapest_schedule(curve(table.tolist()), tau)
    least = 0
    for j, chosen in enumerate(choice.bins):
        enough = [b for b, v in zip(BUDGETS, table[:, j], strict=False) if v >= tau - 1e-12]
        least = max(least, enough[0] if enough else DENSE)
        assert chosen.budget == least == choice.schedule.budget_at(100 * j + 50)


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_higher_tau_never_costs_less(values: list[float], a: float, b: float) -> None:
    table = np.resize(np.array(values or [0.5]), (4, 3))
    low, high = sorted((a, b))
    below = cheapest_schedule(curve(table.tolist()), low).schedule
    above = cheapest_schedule(curve(table.tolist()), high).schedule
    assert np.all(below.budgets_for(np.arange(400)) <= above.budgets_for(np.arange(400)))


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 9)), max_size=15),
)
def test_isotonic_rises_and_keeps_the_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = [p[0] for p in pairs], [p[1] for p in pairs]
    fit = isotonic(values, weights)
    assert fit.shape == (len(pairs),) and np.all(np.diff(fit) >= 0)
    assert np.dot(fit, weights) == pytest.approx(np.dot(values, weights), abs=1e-9)
    np.testing.assert_allclose(isotonic(fit, weights), fit)


def test_a_planted_schedule_is_found_in_simulated_rollouts() -> None:
    """p5 = 1 - 9 length / (100 budget) reaches 0.9 exactly while length <= 10/9 budget."""
    rng = np.random.default_rng(7)
    bins, width, prompts = 4, 100, 60
    rows = []
    for budget in BUDGETS:
        counts = np.zeros((prompts, bins, ACCEPTANCE_BINS), np.int64)
        for j in range(bins):
            p05 = 1 - 0.09 * (j * width + 50) / budget
            for i in range(prompts):
                spread = (1 - p05) / 0.95 * rng.uniform(0.9, 1.1)
                values = 1 - np.minimum(spread * rng.random(width), 1)
                np.add.at(counts[i, j], acceptance_bin(values), 1)
        own = curve_rows(counts, width, min_prompts=16, bootstrap=100, seed=0)
        rows += [{"trajectory": "own", "budget": budget, **row} for row in own]
    data = {"schema": 1, "page_size": 16, "bin_width": width, "rows": rows}
    choice = cheapest_schedule(Curve.from_json(data), 0.9)
    # middles 50, 150, 250, 350 need budgets of at least 45, 135, 225, 315
    assert [b.budget for b in choice.bins] == [64, 256, 256, 512]
    assert cheapest_schedule(Curve.from_json(data), 0.9, "lower").schedule == choice.schedule


def test_on_a_plateau_noise_costs_less_than_asking_every_larger_budget() -> None:
    """Of ten budgets the third is the first above tau, and the next six hardly better."""
    truth = np.array([0.5, 0.7, 0.868, 0.872, 0.875, 0.878, 0.88, 0.885, 0.89, 0.95])
    rng = np.random.default_rng(0)
    ours, every = [], []
    for _ in range(500):
        seen = truth + rng.normal(0, 0.01, len(truth))
        table = Curve(
            page_size=16,
            bin_width=100,
            budgets=np.arange(10) * 16 + 48,
            bin_starts=np.array([0]),
            value=seen[:, None],
            low=seen[:, None],
            high=seen[:, None],
            prompts=np.full((10, 1), 20),
        )
        budget = cheapest_schedule(table, 0.86).schedule.budgets[0]
        ours.append((budget - 48) // 16)
        every.append(next((i for i in range(10) if (seen[i:] >= 0.86).all()), 10))
    assert min(ours) >= 2
    assert np.mean(ours) - 2 < 0.5 < np.mean(every) - 2
