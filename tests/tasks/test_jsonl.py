"""JSON Lines as a task: splits by content, verifiers, and files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.tasks import SPLITS, make_task
from sparrow_lab.tasks.base import Verdict
from sparrow_lab.tasks.jsonl import JsonlTask
from tests.tasks.texts import byte_tokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def sums(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(first, first + count)
    ]


def jsonl(path: Path, **params: Any) -> JsonlTask:
    config = TaskConfig(name="jsonl", dataset=str(path), params=params)
    task = make_task(config, byte_tokenizer())
    assert isinstance(task, JsonlTask)
    return task


def counts(task: JsonlTask) -> dict[str, int]:
    return {split: len(task._pairs[split]) for split in SPLITS}


def test_splits_are_disjoint_and_hold_everything(tmp_path: Path) -> None:
    task = jsonl(write(tmp_path / "a.jsonl", sums(400)))
    ids = [p.id for s in SPLITS for p in task.prompts(s, 0, counts(task)[s])]
    assert len(ids) == len(set(ids)) == 400
    assert 240 < counts(task)["train"] < 320
    assert all(20 < counts(task)[s] < 65 for s in ("calibrate", "verify", "evaluate"))


def test_more_lines_and_another_order_move_no_prompt(tmp_path: Path) -> None:
    small = jsonl(write(tmp_path / "a.jsonl", sums(100)))
    large = jsonl(write(tmp_path / "b.jsonl", list(reversed(sums(300)))))
    for split in SPLITS:
        assert set(small._pairs[split]) <= set(large._pairs[split])


def test_training_repeats_in_another_order_and_the_rest_does_not(tmp_path: Path) -> None:
    task = jsonl(write(tmp_path / "a.jsonl", sums(100)))
    size = counts(task)["train"]
    first = task.prompts("train", 0, size, seed=1)
    second = task.prompts("train", size, size, seed=1)
    assert {p.id for p in first} == {p.id for p in second} and first != second
    assert task.prompts("train", 3, 5, seed=1) == first[3:8]
    assert task.prompts("train", 0, size, seed=2) != first
    few = counts(task)["evaluate"]
    assert task.prompts("evaluate", 0, few, seed=1) == task.prompts("evaluate", 0, few, seed=2)
    with pytest.raises(UserError, match=f"give 'evaluate' {few}; asked for {few + 1}"):
        task.prompts("evaluate", 0, few + 1)


def test_a_repeated_prompt_counts_once(tmp_path: Path) -> None:
    rows = [*sums(30), {"prompt": "What is  0 + 1? ", "answer": "1"}]
    assert sum(counts(jsonl(write(tmp_path / "a.jsonl", rows))).values()) == 30


def test_math_and_exact_verifiers(tmp_path: Path) -> None:
    rows = [{"q": f"Half of {n}?", "a": n / 2} for n in range(40)]
    path = write(tmp_path / "a.jsonl", rows)
    fields = {"prompt_field": "q", "answer_field": "a"}
    task = jsonl(path, verifier="math", **fields)
    prompt = task.prompts("train", 0, 1)[0]
    half = float(prompt.answer)
    text = f"<answer>\\frac{{{int(2 * half)}}}{{2}}</answer>"
    assert task.judge(prompt, task.tokenizer(text).input_ids) is Verdict.RIGHT
    exact = jsonl(path, verifier="exact", **fields)
    assert exact.judge(prompt, exact.tokenizer(text).input_ids) is Verdict.WRONG
    same = f"<answer> {prompt.answer} </answer>"
    assert exact.judge(prompt, exact.tokenizer(same).input_ids) is Verdict.RIGHT
    assert exact.judge(prompt, exact.tokenizer("hm").input_ids) is Verdict.UNPARSABLE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a", "answer": "b"}\n{"prompt": \n', "a.jsonl:2: not JSON"),
        (b"[1]\n", "a.jsonl:1: not a JSON object"),
        (b"", "the file is empty"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b'{"promt": "a", "answer": "b"}\n', r"no field 'prompt' \(did you mean 'promt'\?\)"),
        (b'{"prompt": "a", "answer": null}\n', "'answer' is None"),
        (
            b'{"prompt": "a", "answer": "b"}\n{"prompt": " ", "answer": "b"}\n',
            "a.jsonl:2: 'prompt'",
        ),
        (b'{"prompt": ["a"], "answer": "b"}\n', "not text"),
        (b'{"prompt": "a", "answer": "b"}\n{"prompt": "a", "answer": "c"}\n', "has two answers"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        jsonl(path)


def test_a_missing_file_an_option_and_a_split_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        jsonl(tmp_path / "none.jsonl")
    path = write(tmp_path / "a.jsonl", sums(1))
    with pytest.raises(UserError, match="verifier"):
        jsonl(path, verifier="maths")
    with pytest.raises(UserError, match="did you mean 'prompt_field'"):
        jsonl(path, promt_field="q")
    empty = next(split for split, size in counts(jsonl(path)).items() if size == 0)
    with pytest.raises(UserError, match=f"1 different prompts give '{empty}' 0"):
        jsonl(path).prompts(empty, 0, 1)  # type: ignore[arg-type]
