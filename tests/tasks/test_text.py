"""Finding the final answer; prompts and stop tokens through a chat template."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.errors import UserError
from sparrow_lab.tasks.text import (
    answer_text,
    chat_tokens,
    final_answer,
    last_boxed,
    need_tokenizer,
    stop_tokens,
)
from tests.tasks.texts import byte_tokenizer

THINKING = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so it is <answer>42</answer>", "42"),
        ("<answer>1</answer> no, <answer> 2\n</answer>.", "2"),
        ("I write <answer>3, hmm <answer>4</answer>", "4"),
        ("\\boxed{1} and \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {x}", "x"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{7} <answer>8</answer>", "8"),
        ("The answer is 12.", "12"),
        ("**Final answer:** 5", "5"),
        ("Answer: a, b", "a, b"),
        ("The final answer is:\n$5$", "$5$"),
        ("1 + 2 = 3", None),
        ("", None),
        ("<answer></answer>", None),
        ("<answer>cut off", None),
        ("\\boxed{cut off", None),
        ("\\boxed{}", None),
        ("<think>so \\boxed{3}", None),
        ("<think>a <answer>3</answer></think> then", None),
        ("<think>a</think> b <think> <answer>3</answer>", None),
        ("<think>maybe \\boxed{4}</think> it is \\boxed{3}", "3"),
        ("left over</think> <answer>9</answer>", "9"),
    ],
)
def test_final_answer(text: str, expected: str | None) -> None:
    assert final_answer(text) == expected


@given(st.text(alphabet="{}\\ab ", max_size=40))
def test_last_boxed_gives_balanced_text_back(inner: str) -> None:
    found = last_boxed("see \\boxed{" + inner + "} end")
    if found is not None and "\\boxed" not in inner:
        assert inner.startswith(found) or found == inner


@given(st.text(max_size=200))
def test_any_text_has_an_answer_or_none(text: str) -> None:
    found = final_answer(text)
    assert found is None or found.strip() != ""


def test_chat_prompt_ends_where_the_answer_begins() -> None:
    tokenizer = byte_tokenizer()
    text = tokenizer.decode(list(chat_tokens(tokenizer, "How?", "Be brief.")))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_model_without_a_template_gets_plain_text() -> None:
    tokenizer = byte_tokenizer(chat=None)
    assert tokenizer.decode(list(chat_tokens(tokenizer, "How?"))) == "How?\n\n"


def test_stop_tokens_are_those_of_the_vocabulary() -> None:
    tokenizer = byte_tokenizer()
    names = tokenizer.convert_ids_to_tokens(list(stop_tokens(tokenizer)))
    assert sorted(names) == ["<|endoftext|>", "<|im_end|>"]


def test_answer_text_ends_at_the_stop_token() -> None:
    tokenizer = byte_tokenizer()
    stops = stop_tokens(tokenizer)
    tokens = [*tokenizer("yes").input_ids, tokenizer.eos_token_id, *tokenizer("no").input_ids]
    assert answer_text(tokenizer, (1, 2), tokens, stops) == "yes"


def test_a_thought_that_the_template_opened_must_be_closed() -> None:
    tokenizer = byte_tokenizer(chat=THINKING)
    prompt, stops = chat_tokens(tokenizer, "How?"), stop_tokens(tokenizer)
    unfinished = tokenizer("hmm <answer>3</answer>").input_ids
    finished = tokenizer("hmm</think> <answer>3</answer>").input_ids
    assert final_answer(answer_text(tokenizer, prompt, unfinished, stops)) is None
    assert final_answer(answer_text(tokenizer, prompt, finished, stops)) == "3"


def test_models_that_cannot_read_text_are_refused() -> None:
    from sparrow_lab.config.schema import ModelConfig
    from sparrow_lab.models.load import load_model

    _, symbols = load_model(ModelConfig(name="tiny-s"), "cpu")
    for tokenizer in (None, symbols):
        with pytest.raises(UserError, match="needs a model that reads text"):
            need_tokenizer(tokenizer, "jsonl")
