"""The symbols that the built-in tasks and tiny models share, and their tokenizer.

One token is one symbol, so every position of a chain of thought can be named in a test. The ids are
part of the shipped weights: symbols may be added at the end, never moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KEYS = tuple(f"k{i}" for i in range(24))
LABELS = tuple("ABCDEFGH")
COUNTS = tuple(str(i) for i in range(29))
FILLERS = ("<step>", "<then>")
SPECIAL = ("<pad>", "<bos>", "<eos>", ">", ";", "?", ":", "#")

SYMBOLS: tuple[str, ...] = SPECIAL + KEYS + LABELS + COUNTS + FILLERS
ID: dict[str, int] = {symbol: i for i, symbol in enumerate(SYMBOLS)}

PAD, BOS, EOS, ARROW, SEMICOLON, QUESTION, COLON, HASH = range(len(SPECIAL))
KEY0 = ID[KEYS[0]]
LABEL0 = ID[LABELS[0]]
COUNT0 = ID[COUNTS[0]]
STEP, THEN = ID["<step>"], ID["<then>"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `SYMBOLS`; text is symbols parted by spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel(dict(ID), unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
