"""Prompts and answers from a JSON Lines file.

A hash of the prompt decides its split, so adding lines never moves a prompt from one split to
another, and a prompt that stands in the file twice is used once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError, nearest
from sparrow_lab.tasks.base import SPLITS, Prompt, Split, Verdict
from sparrow_lab.tasks.content import MOSTLY_TRAIN, content_hash, split_of
from sparrow_lab.tasks.math import LIMIT_S, judge_math
from sparrow_lab.tasks.params import parse_params
from sparrow_lab.tasks.text import (
    STEP_BY_STEP,
    answer_text,
    chat_tokens,
    final_answer,
    need_tokenizer,
    stop_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip")


class JsonlParams(BaseModel):
    """Options of the task (`task.params`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    verifier: Literal["math", "exact"] = "math"
    """math: equal in value, by math-verify. exact: equal text, apart from white space."""
    instruction: str = STEP_BY_STEP
    """Follows the prompt."""
    system: str | None = None
    timeout_s: float = Field(LIMIT_S, gt=0)
    """Processor seconds of one check of the math verifier."""


class JsonlTask:
    """See the module's docstring.

    Raises:
        UserError: no such file, a line or field that cannot be used, or no text tokenizer.
    """

    name = "jsonl"

    def __init__(self, config: TaskConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.params = parse_params(JsonlParams, config)
        if config.dataset is None:
            raise UserError("jsonl needs the path of a file", "task.dataset")
        self.path = Path(config.dataset).expanduser()
        self.tokenizer = need_tokenizer(tokenizer, self.name)
        self.max_new_tokens = config.max_new_tokens or 2048
        self.stop_tokens = stop_tokens(self.tokenizer)
        self._pairs = self._split(read_pairs(self.path, self.params))
        self._orders: dict[tuple[Split, int, int], list[str]] = {}

    def _split(self, pairs: list[tuple[str, str]]) -> dict[Split, dict[str, tuple[str, str]]]:
        """Pairs by split and content hash. The same prompt with two answers is refused."""
        found: dict[Split, dict[str, tuple[str, str]]] = {split: {} for split in SPLITS}
        for prompt, answer in pairs:
            digest = content_hash(prompt)
            _, first = found[split_of(digest, MOSTLY_TRAIN)].setdefault(digest, (prompt, answer))
            if first != answer:
                raise UserError(
                    f"a prompt has two answers, {first!r} and {answer!r}: {prompt[:60]!r}",
                    str(self.path),
                )
        return found

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """See `Task.prompts`.

        Training goes through its prompts again and again, each time in another order that the seed
        decides; the other splits have one order and each prompt once.

        Raises:
            UserError: the split holds none, or too few for a split that does not repeat.
        """
        pairs = self._pairs[split]
        if not pairs or (split != "train" and start + count > len(pairs)):
            total = sum(len(p) for p in self._pairs.values())
            raise UserError(
                f"{total} different prompts give '{split}' {len(pairs)}; asked for {start + count}",
                str(self.path),
            )
        chosen = []
        for index in range(start, start + count):
            epoch, place = divmod(index, len(pairs))
            digest = self._order(split, seed if split == "train" else 0, epoch)[place]
            text, answer = pairs[digest]
            user = f"{text}\n\n{self.params.instruction}".strip()
            tokens = chat_tokens(self.tokenizer, user, self.params.system)
            chosen.append(Prompt(digest[:16], tokens, answer))
        return chosen

    def _order(self, split: Split, seed: int, epoch: int) -> list[str]:
        """Content hashes of a split, shuffled by a hash of (seed, epoch, content)."""
        key = (split, seed, epoch)
        if key not in self._orders:
            if len(self._orders) > 8:
                self._orders.clear()

            def rank(digest: str) -> str:
                return hashlib.sha256(f"{seed}/{epoch}/{digest}".encode()).hexdigest()

            self._orders[key] = sorted(self._pairs[split], key=rank)
        return self._orders[key]

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """See `Task.judge`; an answer without a marked final answer is unparsable."""
        text = answer_text(self.tokenizer, prompt.tokens, tokens, self.stop_tokens)
        if self.params.verifier == "math":
            return judge_math(prompt.answer, text, self.params.timeout_s)
        return judge_exact(prompt.answer, text)


def judge_exact(answer: str, text: str) -> Verdict:
    """Compare the final answer of a text with the right one, white space apart."""
    final = final_answer(text)
    if final is None:
        return Verdict.UNPARSABLE
    return Verdict.RIGHT if final.split() == answer.split() else Verdict.WRONG


def read_pairs(path: Path, params: JsonlParams) -> list[tuple[str, str]]:
    """(prompt, answer) of every line, through `datasets`, which keeps the file out of memory.

    Raises:
        UserError: naming the file and the line.
    """
    if not path.is_file():
        raise UserError("no such file", f"task.dataset {path}")
    check_lines(path, params)
    import datasets
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        table = datasets.load_dataset("json", data_files=str(path), split="train")
    except Exception as error:  # datasets wraps what pyarrow says in several types of its own
        raise UserError(f"cannot be read: {error}", str(path)) from None
    for name in (params.prompt_field, params.answer_field):
        if name not in table.column_names:
            there = ", ".join(table.column_names)
            hint = nearest(name, table.column_names)
            raise UserError(f"no field '{name}'{hint}; there are {there}", str(path))
    pairs = []
    columns = table.select_columns([params.prompt_field, params.answer_field])
    for number, row in enumerate(columns, start=1):
        prompt, answer = row[params.prompt_field], row[params.answer_field]
        check_pair(prompt, answer, params, f"{path}:{number}")
        pairs.append((prompt, str(answer)))
    return pairs


def check_lines(path: Path, params: JsonlParams) -> None:
    """Refuse a file with a line that cannot be used; needs no `datasets`, and reads it once.

    Compressed files, and a single JSON array, are left to `read_pairs`.

    Raises:
        UserError: naming the file and the first such line.
    """
    if path.stat().st_size == 0:
        raise UserError("the file is empty", str(path))
    if path.suffix in _COMPRESSED or path.suffix == ".json":
        return
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    _check_line(line, params, f"{path}:{number}")
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", f"{path}:{number + 1}") from None
    except OSError as error:
        raise UserError(error.strerror or str(error), str(path)) from None


def _check_line(line: str, params: JsonlParams, where: str) -> None:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UserError(f"not JSON: {error}", where) from None
    if not isinstance(found, dict):
        raise UserError("not a JSON object", where)
    for name in (params.prompt_field, params.answer_field):
        if name not in found:
            there = ", ".join(found)
            raise UserError(f"no field '{name}'{nearest(name, found)}; there are {there}", where)
    check_pair(found[params.prompt_field], found[params.answer_field], params, where)


def check_pair(prompt: Any, answer: Any, params: JsonlParams, where: str) -> None:
    """Refuse a prompt that is no text, and an answer that is neither text nor a number."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"'{params.prompt_field}' is {prompt!r}, not text", where)
    number = isinstance(answer, int | float) and not isinstance(answer, bool)
    if not number and not (isinstance(answer, str) and answer.strip()):
        raise UserError(f"'{params.answer_field}' is {answer!r}, not text or a number", where)
