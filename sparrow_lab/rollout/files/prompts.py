"""Prompts from a JSON Lines file: text, a conversation, or token ids as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrow_lab.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMS = ("prompt", "messages", "tokens")
"""Fields that state a prompt; a line has one of them. Other fields are left alone."""


class Line(NamedTuple):
    """A line that is not empty, and where it stands."""

    where: str
    found: dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """The objects of a file, before any model is loaded; empty lines are skipped.

    Raises:
        UserError: naming file and line.
    """
    if not path.is_file():
        raise UserError("no such file", f"--prompts {path}")
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read as UTF-8 text: {error}", str(path)) from None
    lines = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UserError(f"is not JSON: {error}", where) from None
        if not isinstance(found, dict):
            raise UserError("is not a JSON object", where)
        lines.append(Line(where, found))
    if not lines:
        raise UserError("holds no prompt", str(path))
    return lines


def tokenize(
    lines: list[Line], tokenizer: PreTrainedTokenizerBase, plain: bool = False
) -> list[tuple[int, ...]]:
    """Token ids of every line.

    `{"prompt": "text"}` is one user turn in the model's chat template, or bare text if the model
    has none; `{"messages": [{"role": ..., "content": ...}, ...]}` is a conversation;
    `{"tokens": [1, 2, 3]}` is taken as it is.

    Args:
        plain: tokenize text as it is even if there is a chat template.

    Raises:
        UserError: naming file and line.
    """
    prompts = [_tokens(found, tokenizer, plain, where) for where, found in lines]
    for line, tokens in zip(lines, prompts, strict=True):
        if not tokens:
            raise UserError("the prompt has no tokens", line.where)
    return prompts


def _tokens(
    found: dict[str, Any], tokenizer: PreTrainedTokenizerBase, plain: bool, where: str
) -> tuple[int, ...]:
    given = [form for form in FORMS if form in found]
    if len(given) != 1:
        there = ", ".join(f"'{name}'" for name in found)
        close = next((near for name in found if (near := nearest(name, FORMS))), "")
        raise UserError(
            f"one of {', '.join(FORMS)} states the prompt; there are {there or 'no'} fields{close}",
            where,
        )
    (form,) = given
    value = found[form]
    if form == "tokens":
        return _ids(value, len(tokenizer), where)
    if form == "prompt":
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"'prompt' is {value!r}, not text", where)
        if plain or tokenizer.chat_template is None:
            return _plain(value, tokenizer, where)
        value = [{"role": "user", "content": value}]
    if tokenizer.chat_template is None:
        raise UserError("'messages' need a model with a chat template", where)
    try:
        text = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template raises what it likes
        raise UserError(f"the chat template cannot render the messages: {error}", where) from None
    # the template writes the model's first token itself where the model wants one
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _plain(text: str, tokenizer: PreTrainedTokenizerBase, where: str) -> tuple[int, ...]:
    """Ids of a text; a word that the vocabulary does not have is refused."""
    unknown = {tokenizer.unk_token_id, tokenizer.pad_token_id} - {None}
    named = {tokenizer.unk_token, tokenizer.pad_token}
    ids = tuple(tokenizer(text)["input_ids"])
    if unknown & set(ids):
        for word in text.split():
            if word not in named and unknown & set(tokenizer(word)["input_ids"]):
                raise UserError(f"the model's vocabulary has no '{word}'", where)
    return ids


def _ids(value: Any, vocabulary: int, where: str) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(token) is int for token in value)
    if not whole:
        raise UserError("'tokens' must be a list of whole numbers", where)
    wrong = [token for token in value if not 0 <= token < vocabulary]
    if wrong:
        raise UserError(f"token {wrong[0]} is not in the vocabulary of {vocabulary}", where)
    return tuple(value)
