"""Sparse decoding written out plainly in numpy: what the engine is held to.

Nothing here comes from the engine: weights are read by their transformers names, every sequence
is decoded alone, keys and values lie in full arrays, pages are chosen by loops over pages, and
attention runs over all positions under a mask. Only the rotary tables are asked of the model
itself, since transformers makes them in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rules:
    """How to attend, in the words of the design: pages, reserved pages, steps of the budget."""

    page_size: int
    first_pages: int
    last_pages: int
    steps: tuple[tuple[int, int], ...]
    landmark: str = "mean"
    score: str = "group_mean"
    dense_layers: int = 2

    def kept_pages(self, length: int) -> int:
        """Pages to keep once `length` tokens are in the cache."""
        budget = 0
        for first_length, tokens in self.steps:
            if length >= first_length:
                budget = tokens
        return min(budget // self.page_size, math.ceil(length / self.page_size))

    def attended(self, length: int) -> int:
        """Tokens in those pages, of which the last may be partly filled."""
        pages = math.ceil(length / self.page_size)
        return self.kept_pages(length) * self.page_size - (pages * self.page_size - length)


def pages_of_tokens(first_tokens: int, last_tokens: int, page_size: int) -> tuple[int, int]:
    """Reserved pages that keep the first and, whatever the last page's fill, the last tokens."""
    first = 0
    while first * page_size < first_tokens:
        first += 1
    last = 1
    while (last - 1) * page_size + 1 < last_tokens:
        last += 1
    return first, last


@dataclass
class Told:
    """What the reference says of one sample, token by token."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    hidden: list[Floats] = field(default_factory=list)
    attended: list[int] = field(default_factory=list)
    skipped: int = 0
    """Pages left out, over all tokens, layers and heads: 0 means that nothing was sparse."""


class Reference:
    """One model in float64 numpy."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self.weights = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}
        self.layers = config.num_hidden_layers
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        positions = torch.arange(config.max_position_embeddings)[None]
        core: Any = model.model
        cos, sin = core.rotary_emb(torch.zeros(1, dtype=torch.float64), positions)
        self.cos, self.sin = cos[0].numpy(), sin[0].numpy()

    def generate(
        self,
        prompt: Sequence[int],
        rules: Rules,
        *,
        cap: int,
        stops: Sequence[int] = (),
        noise: Callable[[int], float] | None = None,
        temperature: float = 1.0,
        given: Sequence[int] | None = None,
    ) -> Told:
        """Decode one sample: greedily, by inverting the distribution function at `noise(position)`,
        or by feeding `given` tokens. Log-probabilities are at the temperature.
        """
        told = Told()
        keys: list[list[Floats]] = [[] for _ in range(self.layers)]
        values: list[list[Floats]] = [[] for _ in range(self.layers)]
        hidden = np.zeros(0)
        for position, token in enumerate(prompt):
            hidden, _ = self._feed(token, position, keys, values, None)
        attended = 0
        while True:
            logits = self._head() @ hidden / temperature
            logp = logits - logits.max()
            logp = logp - np.log(np.exp(logp).sum())
            position = len(prompt) + len(told.tokens)
            if given is not None:
                token = given[len(told.tokens)]
            elif noise is None:
                token = int(np.argmax(logp))
            else:
                cdf = np.cumsum(np.exp(logp))
                token = int(np.argmax(cdf > noise(position) * cdf[-1]))
            told.tokens.append(token)
            told.logp.append(float(logp[token]))
            told.hidden.append(hidden)
            told.attended.append(attended)
            if len(told.tokens) == (len(given) if given is not None else cap):
                return told
            if given is None and token in stops:
                return told
            hidden, skipped = self._feed(token, position, keys, values, rules)
            told.skipped += skipped
            attended = rules.attended(position + 1)

    def _feed(
        self,
        token: int,
        position: int,
        keys: list[list[Floats]],
        values: list[list[Floats]],
        rules: Rules | None,
    ) -> tuple[Floats, int]:
        """One token through all layers; without rules everything is attended to."""
        x = self.weights["model.embed_tokens.weight"][token]
        skipped = 0
        for i in range(self.layers):
            q_HD, k_KD, v_KD = self._project(i, self._norm(x, f"{_at(i)}input_layernorm"), position)
            keys[i].append(k_KD)
            values[i].append(v_KD)
            k_TKD, v_TKD = np.stack(keys[i]), np.stack(values[i])
            group = self.heads // self.kv_heads
            out = np.zeros((self.heads, self.dim))
            for j in range(self.kv_heads):
                mine = q_HD[j * group : (j + 1) * group]
                seen = np.ones(len(k_TKD), bool)
                if rules is not None and i >= rules.dense_layers:
                    seen = visible(mine, k_TKD[:, j], rules)
                    skipped += math.ceil(int((~seen).sum()) / rules.page_size)
                for h in range(group):
                    out[j * group + h] = _attend(mine[h], k_TKD[:, j], v_TKD[:, j], seen)
            x = x + self.weights[f"{_at(i)}self_attn.o_proj.weight"] @ out.reshape(-1)
            y = self._norm(x, f"{_at(i)}post_attention_layernorm")
            gate = self.weights[f"{_at(i)}mlp.gate_proj.weight"] @ y
            up = self.weights[f"{_at(i)}mlp.up_proj.weight"] @ y
            x = x + self.weights[f"{_at(i)}mlp.down_proj.weight"] @ (
                gate / (1 + np.exp(-gate)) * up
            )
        return self._norm(x, "model.norm"), skipped

    def _head(self) -> Floats:
        tied = "lm_head.weight" not in self.weights
        head: Floats = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return head

    def _norm(self, x: Floats, name: str) -> Floats:
        scale: Floats = self.weights[f"{name}.weight"]
        out: Floats = scale * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return out

    def _project(self, i: int, y: Floats, position: int) -> tuple[Floats, Floats, Floats]:
        parts = []
        for letter, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            name = f"{_at(i)}self_attn.{letter}"
            out = self.weights[f"{name}_proj.weight"] @ y
            out = out + self.weights.get(f"{name}_proj.bias", 0.0)
            out = out.reshape(heads, self.dim)
            if f"{name}_norm.weight" in self.weights:
                out = self._norm(out, f"{name}_norm")
            if letter != "v":
                half = self.dim // 2
                turned = np.concatenate([-out[:, half:], out[:, :half]], axis=1)
                out = out * self.cos[position] + turned * self.sin[position]
            parts.append(out)
        return parts[0], parts[1], parts[2]


def visible(q_GD: Floats, k_TD: Floats, rules: Rules) -> npt.NDArray[np.bool_]:
    """Which positions one KV head attends to."""
    length, size = len(k_TD), rules.page_size
    pages = math.ceil(length / size)
    kept = {p for p in range(pages) if p < rules.first_pages or p >= pages - rules.last_pages}
    candidates = [p for p in range(pages) if p not in kept]
    scores = _scores(q_GD, [k_TD[p * size : (p + 1) * size] for p in candidates], rules)
    best = sorted(zip(candidates, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))
    for page, _ in best[: max(rules.kept_pages(length) - len(kept), 0)]:
        kept.add(page)
    seen = np.zeros(length, bool)
    for page in kept:
        seen[page * size : (page + 1) * size] = True
    return seen


def _scores(q_GD: Floats, blocks: list[Floats], rules: Rules) -> list[float]:
    """One score a page."""

    def raw(q_D: Floats, block: Floats) -> float:
        if rules.landmark == "mean":
            return float(q_D @ block.mean(axis=0))
        low, high = block.min(axis=0), block.max(axis=0)
        return float(sum(max(a * b, a * c) for a, b, c in zip(q_D, low, high, strict=True)))

    if rules.score == "group_mean":
        return [raw(q_GD.mean(axis=0), block) for block in blocks]
    best = [0.0] * len(blocks)
    for q_D in q_GD:
        weights = [math.exp(raw(q_D, block) / math.sqrt(len(q_D))) for block in blocks]
        best = [max(b, w / sum(weights)) for b, w in zip(best, weights, strict=True)]
    return best


def _attend(q_D: Floats, k_TD: Floats, v_TD: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    scores = np.where(seen, k_TD @ q_D / math.sqrt(len(q_D)), -np.inf)
    weights = np.exp(scores - scores.max())
    out: Floats = (weights / weights.sum()) @ v_TD
    return out


def _at(i: int) -> str:
    return f"model.layers.{i}."
