"""From a GGUF file to a folder of safetensors that transformers, and everything here, can load.

Three traps of transformers' GGUF path are put right: the digit rule of the tokenizer is lost, the
model still calls itself quantised and refuses to be saved, and the tokenizer forgets its limit.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow_lab.errors import UserError
from sparrow_lab.models.checks import check_probes
from sparrow_lab.models.download import Progress
from sparrow_lab.models.load import quiet
from sparrow_lab.models.save import save_model
from sparrow_lab.models.sources import Source

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def convert(source: Source, gguf: Path, folder: Path, dtype: str, progress: Progress) -> None:
    """Write weights, config and tokenizer of a GGUF file into an empty folder, and check them.

    Raises:
        UserError: token ids or logits of what was written differ from what they should be.
    """
    import torch

    where = f"models fetch {source.name}"
    with quiet(), _silent(), _one_thread():
        progress("reading the tokenizer", None)
        tokenizer = _tokenizer(source, gguf)
        check_probes(tokenizer, source.probes, where)
        progress("multiplying out the weights", None)
        model = _model(source, gguf, getattr(torch, dtype))
        _check_fit(model, tokenizer, source)
        progress(f"writing {dtype} weights", None)
        save_model(folder, model, tokenizer)
        progress("checking what was written", None)
        _check_written(model, folder, source, where)


def _tokenizer(source: Source, gguf: Path) -> PreTrainedTokenizerBase:
    """The tokenizer with the digit rule that the GGUF file names ("smollm")."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, model_max_length=source.context
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    found: PreTrainedTokenizerBase = tokenizer
    return found


def _model(source: Source, gguf: Path, dtype: Any) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=dtype, attn_implementation="sdpa"
    )
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.name_or_path = source.original
    found: PreTrainedModel = model.eval()
    return found


def _check_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source) -> None:
    config = model.config
    facts = {
        "tokens": (len(tokenizer), config.vocab_size),
        "end token": (tokenizer.eos_token_id, config.eos_token_id),
        "context": (config.max_position_embeddings, source.context),
    }
    for what, (found, expected) in facts.items():
        if found != expected:
            raise UserError(f"{what}: {found}, expected {expected}", f"models fetch {source.name}")


def _check_written(model: PreTrainedModel, folder: Path, source: Source, where: str) -> None:
    """Load the folder again: same token ids, and logits equal to the last bit."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    check_probes(tokenizer, source.probes, where)
    again = AutoModelForCausalLM.from_pretrained(
        folder, dtype=model.dtype, attn_implementation="sdpa", local_files_only=True
    ).eval()
    ids = torch.tensor([tokenizer("".join(source.probes))["input_ids"]])
    if not torch.equal(_logits(model, ids), _logits(again, ids)):
        raise UserError("the saved model gives other logits", where)


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """[1, T, vocabulary]."""
    import torch

    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids).logits
    return logits


@contextmanager
def _silent() -> Iterator[None]:
    """Drop the bars and remarks of a conversion; what matters is checked here and raised."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine torch's second thread costs more than it brings."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
