"""A whole model: the rollout's hidden states come back from one pass over the full sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from sparrow_kernels.landmarks import Landmark
from sparrow_kernels.page_choice import Score
from sparrow_kernels.sparse_attention import PageRule, choose_pages, sparse_attention
from sparrow_lab.config.schema import ReservedConfig, RolloutConfig
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import own_copy, small_model


def rule_of(schedule: Schedule, longest: int) -> PageRule:
    """The same schedule for all lengths at once."""
    keep_N = torch.from_numpy(schedule.pages_for(range(longest + 1)))
    first, last = schedule.reserved_pages()
    return PageRule(schedule.page_size, keep_N, first, last, schedule.landmark, schedule.score)


class SparsePass:
    """Attention of a transformers model over one full sequence, as its layers call it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.prompt = 0
        self.left_out = 0
        """Pages that a token, on the last of them, does not attend to."""

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: object, **settings: Any
    ) -> tuple[Tensor, None]:
        q_LHD, k_LKD, v_LKD = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        T = len(q_LHD)
        sparse = module.layer_idx >= self.schedule.dense_layers
        prompts = [self.prompt if sparse else T]
        pages = choose_pages(q_LHD, k_LKD, [0, T], prompts, rule_of(self.schedule, T))
        behind = torch.arange(T) // self.schedule.page_size + 1
        self.left_out += k_LKD.shape[1] * int(behind.sum()) - int(pages.unpack().sum())
        out = sparse_attention(q_LHD, k_LKD, v_LKD, pages, [0, T], settings["scaling"])
        return out[None], None


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize(("landmark", "score"), [("mean", "group_mean"), ("minmax", "softmax_max")])
def test_a_full_pass_gives_the_hidden_states_of_the_rollout(
    family: str, landmark: Landmark, score: Score
) -> None:
    schedule = Schedule(
        4, (0, 30, 50), (16, 20, 28), landmark, score, 1,
        ReservedConfig(first_pages=1, last_pages=2),
    )  # fmt: skip
    model: Any = own_copy(small_model(family, 2, layers=3))
    prompts = [list(range(1, 14)), list(range(3, 9))]
    engine = RolloutEngine(model, schedule)
    batch = engine.generate(prompts, 2, RolloutConfig(), max_new_tokens=60, seed=5)
    assert batch.hidden_NTM is not None
    attend = SparsePass(schedule)
    AttentionInterface.register("full_pass_of_the_test", attend)
    model.set_attn_implementation("full_pass_of_the_test")
    for n in range(len(batch.generated_N)):
        prompt = list(batch.prompts[int(batch.prompt_N[n])])
        tokens = prompt + batch.tokens_NT[n, :-1].tolist()
        attend.prompt = len(prompt)
        with torch.no_grad():
            hidden = model.model(torch.tensor([tokens])).last_hidden_state[0, len(prompt) - 1 :]
        torch.testing.assert_close(hidden, batch.hidden_NTM[n], atol=1e-10, rtol=0)
    assert attend.left_out > 0
