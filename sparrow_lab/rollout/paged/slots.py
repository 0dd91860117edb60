"""What one decoding step reads and writes, in tensors that never move: a CUDA graph may hold them.

The host keeps a mirror of everything but the results; after a change `push` copies the mirror to
the device. On the CPU the mirror is the tensor. Sequences in use always fill the first slots; a
slot of length 0 is empty, and a step may be run over empty slots too.

Shape suffixes: B slots, P columns of the page table, M model width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.config.schema import RolloutConfig

FIELDS: dict[str, torch.dtype] = {
    "token": torch.int64,  # fed next
    "length": torch.int32,  # tokens in the cache once it is fed; 0: empty
    "sample": torch.int64,  # with the seed, the key of the noise
    "seed": torch.int64,
    "forced": torch.int64,  # the token to take instead of drawing one; -1: draw
    "top_k": torch.int64,  # 0: all
    "temperature": torch.float64,  # 0: the largest
    "top_p": torch.float64,
    "min_p": torch.float64,
    "adapted": torch.float64,  # 1: with the model's adapters
}
"""One number a slot. The device holds float64 ones in the dtype of logits."""


class Slots:
    """Slots of the sequences that decode together.

    Args:
        slots: B, the most sequences.
        columns: P, pages of the longest sequence.
        width, heads: M and KV heads of the model.
        wide: dtype of logits.
    """

    def __init__(
        self,
        slots: int,
        columns: int,
        width: int,
        heads: int,
        dtype: torch.dtype,
        wide: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots, self.columns, self.device = slots, columns, device
        pinned = device.type == "cuda"
        self._mirror: dict[str, Tensor] = {
            name: torch.zeros(slots, dtype=kind, pin_memory=pinned) for name, kind in FIELDS.items()
        }
        self._mirror["table"] = torch.zeros((slots, columns), dtype=torch.int32, pin_memory=pinned)
        self._device: dict[str, Tensor] = {}
        for name, mirror in self._mirror.items():
            kind = wide if mirror.dtype == torch.float64 else mirror.dtype
            same = device.type == "cpu" and kind == mirror.dtype
            self._device[name] = mirror if same else mirror.to(device, kind)
        self.host: dict[str, npt.NDArray[Any]] = {k: v.numpy() for k, v in self._mirror.items()}
        # known to the host alone: pages named in the table, tokens of the prompt
        self.host["pages"], self.host["prompt"] = np.zeros((2, slots), np.int64)
        self._changed: set[str] = set()
        self.logp = torch.zeros(slots, dtype=wide, device=device)
        self.raw_logp = torch.zeros(slots, dtype=wide, device=device)
        self.hidden = torch.zeros((slots, width), dtype=dtype, device=device)
        self.counters = torch.zeros(slots * heads, dtype=torch.int32, device=device)
        """Scratch of attention's kernel."""
        self._drawn = torch.zeros(slots, dtype=torch.int64, pin_memory=pinned)

    def __getitem__(self, name: str) -> Tensor:
        """A field on the device."""
        return self._device[name]

    def set(self, slot: int, rollout: RolloutConfig, **numbers: int) -> None:
        """Fill a slot: how it samples, and `token`, `length`, `sample`, `seed`, `forced`,
        `adapted`, `prompt`.
        """
        numbers = {"forced": -1, "adapted": 0, **numbers}
        for name in ("temperature", "top_p", "top_k", "min_p"):
            self.host[name][slot] = getattr(rollout, name)
        for name, number in numbers.items():
            self.host[name][slot] = number
        self._changed |= FIELDS.keys()

    def set_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """Name pages of a slot's sequence, from its page `first` on."""
        self.host["table"][slot, first : first + len(pages)] = pages
        self.host["pages"][slot] = first + len(pages)
        self._changed.add("table")

    def move(self, source: int, target: int) -> None:
        """Let a sequence change its slot."""
        pages = self.host["pages"][source]
        for name in (*FIELDS, "pages", "prompt"):
            self.host[name][target] = self.host[name][source]
        self.host["table"][target, :pages] = self.host["table"][source, :pages]
        self._changed |= self._mirror.keys()

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self.host["length"][slot] = 0
        self._changed.add("length")

    def clear_all(self) -> None:
        """Empty every slot: a rollout that was broken off leaves its sequences in them."""
        self.host["length"][:] = 0
        self._changed.add("length")

    def set_token(self, slot: int, token: int) -> None:
        """The token that a slot is fed next."""
        self.host["token"][slot] = token
        self._changed.add("token")

    def set_length(self, slot: int, length: int) -> None:
        """Tokens in a slot's cache, that of the token fed next counted."""
        self.host["length"][slot] = length
        self._changed.add("length")

    def force(self, first: int, tokens: npt.NDArray[np.int64]) -> None:
        """The next tokens of the slots from `first` on, given instead of drawn."""
        self.host["forced"][first : first + len(tokens)] = tokens
        self._changed.add("forced")

    def push(self, count: int) -> None:
        """Copy to the device what has changed on the host; of the table, `count` slots in use."""
        for name in self._changed:
            device, mirror = self._device[name], self._mirror[name]
            if device is mirror:
                continue
            if name == "table":
                device, mirror = device[:count], mirror[:count]
            device.copy_(mirror, non_blocking=True)
        self._changed.clear()

    def grow(self, count: int) -> None:
        """Count the tokens that the first slots are fed next."""
        self.host["length"][:count] += 1
        self._changed.add("length")

    def pull(self, count: int) -> npt.NDArray[np.int64]:
        """Wait for a step; its tokens, which the first slots are fed next."""
        if self._device["token"] is not self._mirror["token"]:
            self._drawn[:count].copy_(self._device["token"][:count], non_blocking=True)
            torch.cuda.current_stream(self.device).synchronize()
            self.host["token"][:count] = self._drawn[:count].numpy()
        return self.host["token"][:count]
