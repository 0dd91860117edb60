"""The schedule: how many tokens of KV a decode step attends to, as a function of length.

`length` always means prompt + generated, the current token included: what is in the cache
once its key and value are written. A budget counts every kept token: reserved pages, chosen
pages and the partial page. Numpy only; the planner and the analysis use it without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from sparrow_lab.config.schema import ReservedConfig
from sparrow_lab.config.strict import Strict
from sparrow_lab.errors import UserError, nearest
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.sparsity.files import read_json

SCHEMA = 1
DENSE = 2**31 - 1
"""The budget of full attention: more than any cache holds, and it still fits an int32."""

Ints = npt.NDArray[np.int64]


def _paper_reserved() -> ReservedConfig:
    """The first page and the last two, as in the paper."""
    return ReservedConfig.model_validate({})


def reserved_pages(reserved: ReservedConfig, page_size: int) -> tuple[int, int]:
    """Return (first, last): how many pages at each end of the cache are always kept.

    Stated in tokens, the first pages are those that hold the first `first_tokens`. The last
    page holds between 1 and `page_size` tokens, so with `k` last pages at least
    `(k - 1) * page_size + 1` recent tokens are kept whatever its fill; `k` is the least that
    reaches `last_tokens`.
    """
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")
    if reserved.first_tokens is not None and reserved.last_tokens is not None:
        return -(-reserved.first_tokens // page_size), 1 - (
            -(reserved.last_tokens - 1) // page_size
        )
    assert reserved.first_pages is not None and reserved.last_pages is not None
    return reserved.first_pages, reserved.last_pages


def is_variant(model: str, base: str) -> bool:
    """Whether `model` is `base` or a variant of it, of the same size.

    The organisation or folder and the case are left out: `Qwen/Qwen3-1.7B-Base` is a variant of
    `qwen3-1.7b`, but the reverse does not hold, and `tiny-m` is none of `tiny-s`.
    """
    name, stem = (x.rstrip("/").rsplit("/", 1)[-1].lower() for x in (model, base))
    return stem != "" and (name == stem or name.startswith(stem + "-"))


@dataclass(frozen=True)
class Schedule:
    """Budget in tokens as a step function of length, and what it belongs to.

    Args:
        page_size: tokens a page.
        edges: first length of each step; strictly rising, the first is 0.
        budgets: tokens attended to in each step, never falling; a multiple of the page size
            that holds at least the reserved pages, or `DENSE`.
        tau: the p5 it was built for, if it was.
        model: the model it was measured on; None fits every model.
        measured: how it did on fresh prompts (see the README), None before that.

    Raises:
        UserError: the steps do not make a schedule; says which one and why.
    """

    page_size: int
    edges: tuple[int, ...]
    budgets: tuple[int, ...]
    landmark: Literal["mean", "minmax"] = "mean"
    score: Literal["group_mean", "softmax_max"] = "group_mean"
    dense_layers: int = 2
    reserved: ReservedConfig = field(default_factory=_paper_reserved)
    tau: float | None = None
    name: str = ""
    model: str | None = None
    measured: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(int(x) for x in self.edges))
        object.__setattr__(self, "budgets", tuple(int(x) for x in self.budgets))
        where = f"schedule {self.name}".strip()
        if self.page_size < 1:
            raise UserError(f"page size must be at least 1, found {self.page_size}", where)
        if self.dense_layers < 0:
            raise UserError(f"dense layers must be 0 or more, found {self.dense_layers}", where)
        if not self.edges or self.edges[0] != 0:
            raise UserError(f"the first edge must be 0, found {list(self.edges[:1])}", where)
        if len(self.edges) != len(self.budgets):
            raise UserError(f"{len(self.edges)} edges but {len(self.budgets)} budgets", where)
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise UserError(f"edges must rise strictly, found {list(self.edges)}", where)
        least = sum(reserved_pages(self.reserved, self.page_size)) * self.page_size
        for edge, budget in zip(self.edges, self.budgets, strict=True):
            if budget >= DENSE:
                continue
            if budget < least:
                raise UserError(
                    f"the budget {budget} from length {edge} is below the reserved pages "
                    f"({least} tokens at page size {self.page_size})",
                    where,
                )
            if budget % self.page_size:
                raise UserError(
                    f"the budget {budget} from length {edge} is not a multiple of the page size "
                    f"{self.page_size}",
                    where,
                )
        for i in range(1, len(self.budgets)):
            if self.budgets[i] < self.budgets[i - 1]:
                raise UserError(
                    f"budgets must not fall with length, found {self.budgets[i - 1]} and then "
                    f"{self.budgets[i]} from length {self.edges[i]}",
                    where,
                )

    @classmethod
    def dense(cls, page_size: int = 16, **settings: Any) -> Schedule:
        """Full attention at every length. `settings` are further fields of the class."""
        return cls(page_size, (0,), (DENSE,), **{"name": "dense", **settings})

    @classmethod
    def fixed(cls, budget: int, page_size: int, **settings: Any) -> Schedule:
        """One budget, in tokens, at every length."""
        return cls(page_size, (0,), (budget,), **{"name": f"budget={budget}", **settings})

    @property
    def is_dense(self) -> bool:
        """True when every length attends to everything."""
        return self.simplified().budgets[0] >= DENSE

    def reserved_pages(self) -> tuple[int, int]:
        """(first, last) pages that are always kept, at this page size."""
        return reserved_pages(self.reserved, self.page_size)

    def budgets_for(self, lengths: npt.ArrayLike) -> Ints:
        """Budget in tokens at each length; int64, same shape. Empty in, empty out."""
        at = _lengths(lengths)
        edges = np.asarray(self.edges, dtype=np.int64)
        return np.asarray(self.budgets, dtype=np.int64)[np.searchsorted(edges, at, "right") - 1]

    def pages_for(self, lengths: npt.ArrayLike) -> Ints:
        """Pages kept at each length: all of them when they fit the budget."""
        at = _lengths(lengths)
        return np.minimum(-(-at // self.page_size), self.budgets_for(at) // self.page_size)

    def attended_for(self, lengths: npt.ArrayLike) -> Ints:
        """Tokens really attended to at each length: the last page may be partly filled."""
        at = _lengths(lengths)
        unfilled = -(-at // self.page_size) * self.page_size - at
        return self.pages_for(at) * self.page_size - unfilled

    def budget_at(self, length: int) -> int:
        """Budget in tokens at one length."""
        return int(self.budgets_for(length))

    def pages_at(self, length: int) -> int:
        """Pages kept at one length, reserved and partial ones counted."""
        return int(self.pages_for(length))

    def simplified(self) -> Schedule:
        """The same choice of pages at every length with the fewest steps.

        A step whose budget holds all pages of all its lengths chooses nothing, so it takes
        the budget of the next one; steps of equal budget are merged.
        """
        edges, budgets = list(self.edges), list(self.budgets)
        for i in reversed(range(len(edges) - 1)):
            longest = edges[i + 1] - 1
            if budgets[i] == budgets[i + 1] or budgets[i] >= longest:
                budgets[i] = budgets[i + 1]
                del edges[i + 1], budgets[i + 1]
        return replace(self, edges=tuple(edges), budgets=tuple(budgets))

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides a rollout, so two schedules that choose alike agree.

        Name, tau, model and measurement stay outside; dense is one, whatever its page size.
        """
        plain = self.simplified()
        decides: dict[str, Any] = {"schema": SCHEMA, "dense": True}
        if plain.budgets[0] < DENSE:
            decides = {
                "schema": SCHEMA,
                "page_size": self.page_size,
                "edges": list(plain.edges),
                "budgets": [None if b >= DENSE else b for b in plain.budgets],
                "landmark": self.landmark,
                "score": self.score,
                "dense_layers": self.dense_layers,
                "reserved_pages": list(self.reserved_pages()),
            }
        text = json.dumps(decides, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def check_layers(self, layers: int) -> None:
        """Refuse a model of so many layers if a sparse schedule would leave none of them sparse.

        Raises:
            UserError: names both numbers.
        """
        if not self.is_dense and self.dense_layers >= layers:
            raise UserError(
                f"{self.dense_layers} dense layers leave none of the model's "
                f"{layers} layers sparse",
                "sparsity.dense_layers",
            )

    def check_fits(
        self,
        page_size: int,
        model: str | None,
        *,
        landmark: str | None = None,
        score: str | None = None,
        dense_layers: int | None = None,
        reserved: ReservedConfig | None = None,
        any_model: bool = False,
    ) -> None:
        """Refuse a run that this schedule was not made for; what is None is not compared.

        Args:
            any_model: the explicit way to use a schedule measured on another model.

        Raises:
            UserError: names the schedule's side and the run's side. A dense schedule always
                fits; nothing is converted.
        """
        if self.is_dense:
            return
        where = f"schedule {self.name}".strip()
        sides: list[tuple[str, Any, Any]] = [("page size", self.page_size, page_size)]
        sides += [("landmark", self.landmark, landmark), ("score", self.score, score)]
        sides += [("dense layers", self.dense_layers, dense_layers)]
        if reserved is not None:
            theirs = reserved_pages(reserved, page_size)
            sides += [("reserved (first, last) pages", self.reserved_pages(), theirs)]
        for what, ours, its in sides:
            if its is not None and its != ours:
                raise UserError(f"made for {what} {ours}, but the run has {what} {its}", where)
        if any_model or model is None or self.model is None:
            return
        if not is_variant(model, self.model):
            raise UserError(f"made for model {self.model}, but the run has model {model}", where)

    def to_json(self) -> dict[str, Any]:
        """The object of `schedule.json`; full attention is the budget null."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": self.model,
            "tau": self.tau,
            "page_size": self.page_size,
            "edges": list(self.edges),
            "budgets": [None if b >= DENSE else b for b in self.budgets],
            "landmark": self.landmark,
            "score": self.score,
            "dense_layers": self.dense_layers,
            "reserved": self.reserved.model_dump(exclude_none=True),
            "digest": self.digest,
            "measured": None if self.measured is None else dict(self.measured),
        }

    @classmethod
    def from_json(cls, data: object, where: str = "schedule") -> Schedule:
        """Read the object of `schedule.json`.

        A file without a digest is taken as written by hand. A digest that does not match is
        refused: the steps were edited after they were measured.
        """
        try:
            read = _File.model_validate(data)
        except ValidationError as error:
            raise UserError(_first_problem(error), where) from None
        if read.schema_ != SCHEMA:
            raise UserError(f"schema {read.schema_} is unknown; this version reads {SCHEMA}", where)
        fields = read.model_dump(exclude={"schema_", "digest", "edges", "budgets", "reserved"})
        budgets = tuple(DENSE if b is None else b for b in read.budgets)
        try:
            made = cls(edges=tuple(read.edges), budgets=budgets, reserved=read.reserved, **fields)
        except UserError as error:
            raise UserError(error.message, where) from None
        if read.digest is not None and read.digest != made.digest:
            raise UserError(
                f"the digest {read.digest[:12]} does not match the steps ({made.digest[:12]}); "
                "if you edited them, remove 'digest' and 'measured'",
                where,
            )
        return made

    def save(self, path: Path) -> None:
        """Write `schedule.json` at once: a reader sees the old file or the whole new one.

        Raises ValueError when `measured` holds NaN: an empty bin has null there.
        """
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Schedule:
        """Read a schedule file; every problem is a UserError that starts with the path."""
        return cls.from_json(read_json(path), str(path))


class _File(Strict):
    """Types of `schedule.json`; the rules between fields are the Schedule's own."""

    schema_: int = Field(alias="schema")
    page_size: int
    edges: list[int]
    budgets: list[int | None]
    landmark: Literal["mean", "minmax"] = "mean"
    score: Literal["group_mean", "softmax_max"] = "group_mean"
    dense_layers: int = 2
    reserved: ReservedConfig = Field(default_factory=_paper_reserved)
    tau: float | None = Field(None, gt=0, le=1)
    name: str = ""
    model: str | None = None
    digest: str | None = None
    measured: dict[str, Any] | None = None


def _first_problem(error: ValidationError) -> str:
    """One line for the first thing that is wrong in a schedule file."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        names = [info.alias or name for name, info in _File.model_fields.items()]
        return f"unknown key '{key}'{nearest(key, names)}"
    if problem["type"] == "missing":
        return f"the key '{key}' is missing"
    found = "" if key == "" else f", found {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        message, found = "must be an object of schedule.json", ""
    return f"{key or 'the file'}: {message[0].lower()}{message[1:]}{found}"


def _lengths(lengths: npt.ArrayLike) -> Ints:
    """Lengths as int64; a negative or fractional one is a bug of the caller."""
    at = np.asarray(lengths)
    if at.size == 0:
        return at.astype(np.int64)
    if at.dtype.kind not in "iu":
        raise TypeError(f"lengths must be whole numbers, not {at.dtype}")
    if at.min() < 0:
        raise ValueError(f"lengths must be 0 or more, found {at.min()}")
    return at.astype(np.int64)
