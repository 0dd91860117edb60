"""What a rollout gives to the trainer and to calibration.

Shape suffixes: N samples, T generated tokens of the longest, M model width.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class RolloutBatch:
    """Samples in the order asked for: prompt by prompt, sample by sample.

    Attributes:
        prompts: token ids of each prompt.
        prompt_N: which prompt each sample belongs to, int64.
        tokens_NT: generated ids, 0 beyond a sample's end.
        generated_N: generated tokens, the stop token included, int64.
        finished_N: True where a stop token came before the cap.
        logp_NT: log-probability under the distribution sampled from.
        raw_logp_NT: under the untruncated sparse distribution at the temperature.
        hidden_NTM: final hidden state behind each token's distribution; None if not kept. Of a
            rollout on a GPU it lies in host memory.
        attended_NT: KV tokens attended to by a sparse layer, int64; 0 for the first token, which
            comes from the dense prefill.
        seconds: wall time of the rollout.
    """

    prompts: list[tuple[int, ...]]
    prompt_N: Tensor
    tokens_NT: Tensor
    generated_N: Tensor
    finished_N: Tensor
    logp_NT: Tensor
    raw_logp_NT: Tensor
    hidden_NTM: Tensor | None
    attended_NT: Tensor
    seconds: float = field(default=0.0, compare=False)

    @property
    def prompt_length_N(self) -> Tensor:
        lengths = torch.tensor([len(p) for p in self.prompts], device=self.prompt_N.device)
        return lengths[self.prompt_N]

    @property
    def valid_NT(self) -> Tensor:
        """Generated tokens."""
        at = torch.arange(self.tokens_NT.shape[1], device=self.tokens_NT.device)
        return at < self.generated_N[:, None]

    @property
    def counted_NT(self) -> Tensor:
        """Tokens that acceptance counts: all but the first, which the dense prefill made."""
        valid = self.valid_NT.clone()
        valid[:, :1] = False
        return valid

    @property
    def length_NT(self) -> Tensor:
        """Length at each token: cached tokens when its distribution was made (prompt + j)."""
        at = torch.arange(self.tokens_NT.shape[1], device=self.tokens_NT.device)
        return self.prompt_length_N[:, None] + at

    def to(self, device: torch.device) -> RolloutBatch:
        """The same batch with all but its hidden states on a device."""
        moved: dict[str, Any] = {
            part.name: value.to(device)
            for part in fields(self)
            if part.name != "hidden_NTM" and isinstance(value := getattr(self, part.name), Tensor)
        }
        return replace(self, **moved)

    def answers(self) -> list[list[int]]:
        """Generated ids of each sample, without padding."""
        ends = self.generated_N.tolist()
        return [row[:n] for row, n in zip(self.tokens_NT.tolist(), ends, strict=True)]
