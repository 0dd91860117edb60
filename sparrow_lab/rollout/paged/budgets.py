"""A schedule as numbers on the device, looked up by each sequence's own length at every step.

The numbers can be replaced between steps: whoever holds the tensors, a CUDA graph too, then follows
the new schedule.

Shape suffixes: B slots, E steps of a schedule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.page_choice import kept_pages
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.schedule import DENSE, Schedule

STEPS = 64
"""Steps that the tensors have room for."""


class Budgets:
    """Budgets by length."""

    def __init__(self, device: torch.device) -> None:
        # what is unused begins beyond every length
        self.edges_E = torch.full((STEPS,), DENSE, dtype=torch.int32, device=device)
        self.tokens_E = torch.full((STEPS,), DENSE, dtype=torch.int32, device=device)

    def load(self, schedule: Schedule) -> None:
        """Follow this schedule from the next step on.

        Raises:
            UserError: it has more steps than there is room for.
        """
        plain = schedule.simplified()
        count = len(plain.edges)
        if count > STEPS:
            raise UserError(f"has {count} steps; {STEPS} can be followed", f"schedule {plain.name}")
        rest = [DENSE] * (STEPS - count)
        for target, numbers in ((self.edges_E, plain.edges), (self.tokens_E, plain.budgets)):
            target.copy_(torch.tensor([*numbers, *rest], dtype=torch.int32))

    def keep(self, length_B: Tensor, page_size: int, reserved: int) -> Tensor:
        """Pages to keep at each length, at least those reserved; int32, 0 for an empty slot."""
        return kept_pages(length_B, self.edges_E, self.tokens_E, page_size, reserved)
