"""Prompts and answers as text: chat templates, stop tokens, and finding the final answer.

A final answer must be marked as one: `<answer>…</answer>`, `\\boxed{…}` or a line such as "The
answer is …". The last number of a text that was cut off is not an answer, and neither is anything
inside a thought (`<think>`) that was never closed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STEP_BY_STEP = (
    "Think step by step. At the end, write the final answer alone between <answer> and </answer>."
)
"""The default instruction after a question."""

_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "</s>")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SENTENCE = re.compile(
    r"^.*\b(?:final\s+answer|answer)\s*(?:is\b\s*:?|:)\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE
)


def need_tokenizer(tokenizer: PreTrainedTokenizerBase | None, task: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a text model.

    Raises:
        UserError: there is none, or it cannot spell plain text (the built-in tiny models).
    """
    if tokenizer is not None:
        text = "What is 12 + 30?"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if str(tokenizer.decode(ids, skip_special_tokens=True)).strip() == text:
            return tokenizer
    raise UserError(
        f"the task '{task}' needs a model that reads text, such as models/smollm2-135m-instruct; "
        "the built-in tiny models know only their own symbols",
        "task.name",
    )


def chat_tokens(
    tokenizer: PreTrainedTokenizerBase, user: str, system: str | None = None
) -> tuple[int, ...]:
    """Token ids of one user turn, ready for the answer.

    A model without a chat template gets the bare text, after its BOS token if it adds one.
    """
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    if tokenizer.chat_template is None:
        text = "\n\n".join(m["content"] for m in messages) + "\n\n"
        return tuple(tokenizer(text)["input_ids"])
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # the template writes BOS itself where the model wants one
    return tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def stop_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end an answer: EOS, and the end-of-turn tokens that this vocabulary has.

    Raises:
        UserError: the tokenizer names none.
    """
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    ids = {special[token] for token in _END_TOKENS if token in special}
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    if not ids:
        raise UserError("the tokenizer has no end-of-text token", "model.name")
    return tuple(sorted(ids))


def answer_text(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    tokens: Sequence[int],
    stops: Sequence[int],
) -> str:
    """Generated ids as text, up to the first stop token.

    A template that opens a thought at the end of the prompt has its `<think>` put back in front.
    """
    end = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
    text = str(tokenizer.decode(list(tokens[:end]), skip_special_tokens=True))
    tail = str(tokenizer.decode(list(prompt[-8:]))).rstrip()
    return f"<think>{text}" if tail.endswith("<think>") else text


def after_thinking(text: str) -> str | None:
    """What follows the last thought; None when a thought was never closed."""
    before, closed, after = text.rpartition("</think>")
    rest = after if closed else before + after
    return None if "<think>" in rest else rest


def final_answer(text: str) -> str | None:
    """The answer that a text marks as final, or None.

    The last `<answer>…</answer>` counts, else the last `\\boxed{…}`, else the last "answer is …"
    line. An empty answer is None.
    """
    rest = after_thinking(text)
    if rest is None:
        return None
    tagged = _TAG.findall(rest)
    if tagged:
        # a tag may be opened in vain before: the innermost opening counts
        inner = str(tagged[-1]).rpartition("<answer>")[2]
        return _after_sentence(inner) or inner.strip() or None
    boxed = last_boxed(rest)
    if boxed is not None:
        return boxed.strip() or None
    return _after_sentence(rest)


def _after_sentence(text: str) -> str | None:
    """What the last "answer is …" line says, without emphasis and full stop."""
    said = _SENTENCE.findall(text)
    return (str(said[-1]).strip().strip("*_`").rstrip(".").strip() or None) if said else None


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{…}` whose braces balance (escaped ones aside), or None."""
    for opening in reversed(list(_BOXED.finditer(text))):
        depth = 1
        for mark in _BRACE.finditer(text, opening.end()):
            depth += {"{": 1, "}": -1}.get(mark.group(), 0)
            if depth == 0:
                return text[opening.end() : mark.start()]
    return None
