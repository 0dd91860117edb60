"""What is refused before anything runs, with the place of the field at fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparrow_lab.config.load import load_sweep
from sparrow_lab.errors import UserError
from sparrow_lab.models.tiny import asset_folder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep import checks
from sparrow_lab.sweep.plan import make_plan


def plan(folder: Path, text: str) -> Plan:
    path = folder / "s.yaml"
    path.write_text(text)
    return make_plan(load_sweep(path), folder)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("model: {name: tiny-x}", "3:17", "no model 'tiny-x' (did you mean 'tiny-s'?)"),
        ("model: {name: qwen}", "3:17", "any local folder, or owner/name on the hub"),
        ("model: {name: ./gone}", "3:17", "no model './gone'"),
        ("model: {name: notes}", "3:17", "has no config.json"),
        ("model: {name: Org/m, fingerprint: ab}", "3:17", "fingerprint belongs to a local folder"),
        ("task: {name: permutation_walk}", "3:16", "made for the task 'pointer_chase'"),
        ("task: {params: {pears: 3}}", "3:26", "(did you mean 'pairs'?)"),
        (
            "task: {params: {pairs: 3}}",
            "3:26",
            "task.params.pairs: found 3; allowed: a whole number",
        ),
        ("task: {params: {pairs: '12'}}", "3:26", "found the text '12'"),
        ("task: {params: {pairs: true}}", "3:26", "found true; allowed: a whole number"),
        ("model: {warm_start: 77}", "3:23", "tiny-s has no warm start 77"),
        ("task: {params: {hops_min: 6, hops_max: 5}}", "3:18", "hops 6 to 5"),
        ("task: {dataset: x}", "3:19", "makes its own prompts"),
        ("task: {sha256: x}", "3:18", "belongs to a jsonl file"),
        ("{model: {name: a/b}, task: {name: jsonl}}", "3:37", "needs a 'dataset'"),
        (
            "{model: {name: a/b}, task: {name: jsonl, dataset: dat.jsonl}}",
            "3:53",
            "no data file 'dat.jsonl' in",
        ),
        ("{model: {name: a/b}, task: {name: jsonl, dataset: none.jsonl}}", "3:53", "is empty"),
        (
            "{model: {name: a/b}, task: {name: jsonl, dataset: data.jsonl}}",
            "3:53",
            "data.jsonl:2: no field 'answer'",
        ),
        (
            "{model: {name: a/b}, task: {name: jsonl, dataset: good.jsonl, params: {field: q}}}",
            "3:81",
            "field",
        ),
        (
            "{model: {name: a/b}, task: {name: jsonl, dataset: good.jsonl, sha256: 0a0a}}",
            "3:53",
            "good.jsonl' has changed since it was pinned",
        ),
        ("rollout: {temperature: 0}", "3:26", "found 0 (greedy)"),
        ("sparsity: {dense_layers: 3, schedule: {budget: 96}}", "3:28", "tiny-s has 3 layers"),
        ("sparsity: {page_size: 64, schedule: {budget: 256}}", "3:25", "nothing would be sparse"),
        ("sparsity: {schedule: {budget: 32}}", "3:33", "the 3 reserved pages alone hold 48"),
        ("sparsity: {page_size: 32, schedule: {budget: 64}}", "3:48", "at page size 32"),
        ("sparsity: {schedule: {preset: qwen3-1.7b-0.85}}", "3:24", "no preset is called"),
        ("sparsity: {page_size: 8, schedule: {preset: qwen3-1.7b-0.86}}", "3:38", "page size 16"),
        ("sparsity: {schedule: {preset: qwen3-1.7b-0.86}}", "3:24", "model qwen3-1.7b"),
        ("sparsity: {schedule: {file: gone.json}}", "3:24", "no schedule file 'gone.json'"),
        ("sparsity: {schedule: {file: bad.json}}", "3:24", "is not JSON"),
        ("{sparsity: {schedule: {tau: 1}}, calibrate: {prompts: 8}}", "3:47", "only 8 prompts"),
        (
            "{sparsity: {schedule: {tau: 1}}, calibrate: {rule: lower, bootstrap: 0}}",
            "3:54",
            "needs intervals",
        ),
        (
            "{sparsity: {schedule: {tau: 1}}, calibrate: {budgets: [64, 32]}}",
            "3:57",
            "found 32, but at page size 16",
        ),
    ],
)
def test_points_that_cannot_run(tmp_path: Path, text: str, where: str, words: str) -> None:
    (tmp_path / "notes").mkdir()
    good = '{"prompt": "1 + 1", "answer": 2}\n'
    (tmp_path / "good.jsonl").write_text(good)
    (tmp_path / "data.jsonl").write_text(good + '{"prompt": "1 + 1"}\n')
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError) as caught:
        plan(tmp_path, f"name: s\nbase:\n  {text}\n")
    assert words in caught.value.message
    assert caught.value.where == f"{tmp_path / 's.yaml'}:{where}"


def test_a_task_whose_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    text = "{model: {name: a/b}, task: {name: reasoning_gym, dataset: x}}"
    with pytest.raises(UserError, match="pip install") as caught:
        plan(tmp_path, f"name: s\nbase:\n  {text}\n")
    assert caught.value.where == f"{tmp_path / 's.yaml'}:3:37"


def test_the_place_is_that_of_the_axis_value(tmp_path: Path) -> None:
    text = """\
name: s
base: {sparsity: {schedule: {budget: 64}}}
sweep:
  axes:
    sparsity.page_size: [8, 16, 32]
"""
    with pytest.raises(UserError, match="at page size 32") as caught:
        plan(tmp_path, text)
    assert str(caught.value.where).endswith("s.yaml:5:33")
    text = text.replace("base: {sparsity: {schedule: {budget: 64}}}\n", "") + (
        "    sparsity.schedule.budget: [64]\n"
    )
    with pytest.raises(UserError, match="at page size 32") as caught:
        plan(tmp_path, text)
    assert str(caught.value.where).endswith("s.yaml:5:32")


def test_an_excluded_combination_is_not_checked(tmp_path: Path) -> None:
    text = """\
name: s
base: {sparsity: {schedule: {budget: 64}}}
sweep:
  axes: {sparsity.page_size: [8, 32]}
  exclude: [{sparsity.page_size: 32}]
"""
    assert len([p for p in plan(tmp_path, text).points if p.stage == "train"]) == 1


def test_reserved_units_that_an_axis_mixes(tmp_path: Path) -> None:
    text = """\
name: s
base: {sparsity: {reserved: {first_pages: 1, last_pages: 2}}}
sweep: {axes: {sparsity.reserved.first_tokens: [8]}}
"""
    with pytest.raises(UserError, match="in tokens or in pages") as caught:
        plan(tmp_path, text)
    assert str(caught.value.where).endswith("s.yaml:3:49")


SCHEDULE = {
    "schema": 1,
    "page_size": 16,
    "edges": [0, 64],
    "budgets": [64, 128],
    "reserved": {"first_pages": 1, "last_pages": 2},
    "name": "mine",
    "model": None,
}


def test_files_are_found_beside_the_experiment_and_pinned(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(SCHEDULE))
    made = plan(tmp_path, "name: s\nbase: {sparsity: {schedule: {file: mine.json}}}\n")
    point = next(p for p in made.points if p.stage == "train")
    source = point.config["sparsity"]["schedule"]
    assert source["file"] == str(tmp_path / "mine.json")
    assert len(source["sha256"]) == 64
    assert point.label["tau"] == "file=mine"


def test_a_schedule_file_for_another_page_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(SCHEDULE))
    text = "name: s\nbase: {sparsity: {page_size: 32, schedule: {file: mine.json}}}\n"
    with pytest.raises(UserError, match="made for page size 16, but the run has page size 32"):
        plan(tmp_path, text)


def test_a_model_folder_is_known_by_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    shutil.copytree(asset_folder("tiny-s", 0), folder)
    (folder / "tokenizer.json").touch()
    text = "name: s\nbase: {model: {name: qwen}}\n"

    def train(made: Plan) -> str:
        return next(p.id for p in made.points if p.stage == "train")

    before = plan(tmp_path, text)
    assert before.points[0].label["model"] == "qwen"
    assert before.points[0].config["model"]["name"] == str(folder)
    folder.rename(tmp_path / "other")
    moved = plan(tmp_path, text.replace("qwen", "other"))
    assert train(moved) == train(before)
    weights = tmp_path / "other" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert train(plan(tmp_path, text.replace("qwen", "other"))) != train(before)
