"""Experiment files become configs, or one sentence with a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_lab.config.load import load_base, load_sweep
from sparrow_lab.config.schema import PointConfig, SweepConfig, Tau
from sparrow_lab.errors import UserError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def write(tmp_path: Path):
    """Write a file into a fresh folder; returns its path."""

    def make(text: str, name: str = "s.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def failure(path: Path, *overrides: str) -> tuple[str, str]:
    """Return place (without the folder) and message of the error that a file raises."""
    with pytest.raises(UserError) as caught:
        load_sweep(path, overrides)
    assert "\n" not in str(caught.value)
    return (caught.value.where or "").replace(f"{path.parent}/", ""), caught.value.message


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_experiment_loads(path: Path) -> None:
    config = load_sweep(path)
    assert config.name == path.stem


def test_one_float_however_it_is_written(write) -> None:
    texts = ["1e-5", "1.0e-5", "1e-05", "0.00001"]
    from_file = [load_sweep(write(f"name: a\nbase: {{train: {{lr: {t}}}}}\n")) for t in texts]
    from_option = [load_sweep(write("name: a\n"), [f"train.lr={t}"]) for t in texts]
    assert {c.base.train.lr for c in from_file + from_option} == {1e-5}
    assert len({c.model_dump_json() for c in from_file + from_option}) == 1


def test_whole_numbers_are_floats_where_floats_belong(write) -> None:
    config = load_sweep(write("name: a\nbase: {train: {lr: 1, betas: [0, 0.5]}}\n"))
    assert isinstance(config.base.train.lr, float)
    assert config.base.train.betas == (0.0, 0.5)


def test_schedule_forms(write) -> None:
    config = load_sweep(write("name: a\nbase: {sparsity: {schedule: {tau: 1}}}\n"))
    assert config.base.sparsity.schedule == Tau(tau=1.0)
    short = load_sweep(write("name: a\nbase: {sparsity: {schedule: dense}}\n"))
    assert short.base == PointConfig()


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[1, 2]\n", "s.yaml:1:1", "found a list of 2; allowed: a mapping with name"),
        ("just text\n", "s.yaml:1:1", "found the text 'just text'"),
        ("base: {}\n", "s.yaml:1:1", "the key 'name' is missing"),
        ("name: 5\n", "s.yaml:1:7", "name: found 5; allowed: text"),
        ("name: a/b\n", "s.yaml:1:7", "letters, digits"),
        ("name: a\nbses: {}\n", "s.yaml:2:1", "unknown key 'bses' (did you mean 'base'?)"),
        ("name: a\nmodel: {}\n", "s.yaml:2:1", "belongs under 'base': base.model"),
        ("name: a\nbase:\n  trian: {}\n", "s.yaml:3:3", "'trian' in 'base' (did you mean 'train'?"),
        ("name: a\nbase:\n  train.lr: 1\n", "s.yaml:3:3", "nested keys one below the other"),
        ("name: a\nbase:\n  train:\n    lr: fast\n", "s.yaml:4:9", "allowed: a number, above 0"),
        ("name: a\nbase:\n  train: {lr: 0}\n", "s.yaml:3:15", "found 0; allowed: a number, above"),
        ("name: a\nbase:\n  train: {lr: true}\n", "s.yaml:3:15", "found true"),
        ("name: a\nbase: {seed: 010}\n", "s.yaml:2:14", "write 10"),
        ("name: a\nbase: {seed: 1.0}\n", "s.yaml:2:14", "found 1.0; allowed: a whole number"),
        ("name: a\nbase: {seed: true}\n", "s.yaml:2:14", "found true; allowed: a whole number"),
        ("name: a\nbase: {seed: -1}\n", "s.yaml:2:14", "at least 0"),
        ("name: a\nbase: {seed: '3'}\n", "s.yaml:2:14", "remove the quotes"),
        ("name: a\nlaunch: {timeout_min: 12:30:00}\n", "s.yaml:2:23", "in minutes this is 750"),
        (
            "name: a\ndescription: NO\nbase: {train: {advantage_std: NO}}\n",
            "s.yaml:3:31",
            "true or",
        ),
        ("name: a\nbase: {model: {dtype: flaot32}}\n", "s.yaml:2:23", "did you mean 'float32'?"),
        ("name: a\nbase:\n", "s.yaml:2:1", "base: found nothing; allowed: a mapping with model"),
        ("name: a\nbase: {sparsity: {page_size: 0}}\n", "s.yaml:2:30", "at least 1"),
        ("name: a\nbase: {train: {betas: [0.9]}}\n", "s.yaml:2:23", "allowed: a list of 2"),
        ("name: a\nbase: {train: {betas: [1, 2, 3]}}\n", "s.yaml:2:23", "found a list of 3"),
        ("name: a\nbase: {calibrate: {budgets: [8, 0]}}\n", "s.yaml:2:33", "budgets[1]: found 0"),
        ("name: a\nstages: []\n", "s.yaml:2:9", "found an empty list; allowed: a list of at least"),
        ("name: a\nstages: [trian]\n", "s.yaml:2:10", "did you mean 'train'?"),
        ("name: a\nstages: [train]\n", "s.yaml:2:10", "'train' needs 'schedule'"),
        ("name: a\nstages: [calibrate, calibrate]\n", "s.yaml:2:21", "given twice"),
        (
            "name: a\nbase: {sparsity: {reserved: {first_tokens: 1, last_pages: 2}}}\n",
            "s.yaml:2:19",
            "in tokens or in pages, not both",
        ),
    ],
)
def test_mistakes(write, text: str, where: str, words: str) -> None:
    place, message = failure(write(text))
    assert (place, words in message) == (where, True), message


@pytest.mark.parametrize(
    ("schedule", "column", "words"),
    [
        ("{tau: 0}", 35, "schedule.tau: found 0; allowed: a number, above 0 and at most 1"),
        ("{tau: 1.01}", 35, "schedule.tau: found 1.01; allowed: a number, above 0 and at most 1"),
        ("{tau: high}", 35, "schedule.tau: found the text 'high'; allowed: a number"),
        ("{budget: 1.5}", 38, "schedule.budget: found 1.5; allowed: a whole number, at least 1"),
        ("{tau: 0.5, budget: 3}", 29, "found a mapping with tau, budget; allowed: dense, {tau"),
        ("{tua: 0.5}", 29, "(did you mean 'tau'?)"),
        ("dens", 29, "(did you mean 'dense'?)"),
        ("0.86", 29, "found 0.86; allowed: dense, {tau: 0.86}"),
        ("{tau: 0.5, extra: 1}", 40, "unknown key 'extra' in 'base.sparsity.schedule'"),
        ("", 19, "found nothing"),
    ],
)
def test_a_wrong_schedule_is_one_sentence(write, schedule: str, column: int, words: str) -> None:
    place, message = failure(write(f"name: a\nbase: {{sparsity: {{schedule: {schedule}}}}}\n"))
    assert words in message
    assert place == f"s.yaml:2:{column}"
    assert "more)" not in message


def test_the_first_of_several_mistakes_is_told_and_the_others_counted(write) -> None:
    place, message = failure(write("name: a\nlaunch: {x: 1}\nbase: {seed: a, train: {lr: b}}\n"))
    assert place == "s.yaml:2:10"
    assert message.endswith("(and 2 more)")


def test_includes_are_below_the_file(write) -> None:
    write("name: low\nbase: {train: {lr: 1e-3, steps: 5}, seed: 3}\n", "low.yaml")
    write("base: {train: {lr: 1e-4}, sparsity: {schedule: {tau: 0.5}}}\n", "mid.yaml")
    top = write(
        "include: [low.yaml, mid.yaml]\nname: top\nbase: {sparsity: {schedule: {budget: 64}}}\n"
    )
    config = load_sweep(top)
    assert (config.name, config.base.seed) == ("top", 3)
    assert (config.base.train.lr, config.base.train.steps) == (1e-4, 5)
    assert config.base.sparsity.schedule.model_dump() == {"budget": 64}


def test_an_error_in_an_included_file_names_that_file(write) -> None:
    write("base: {train: {lr: x}}\n", "low.yaml")
    place, _ = failure(write("include: [low.yaml]\nname: top\n"))
    assert place == "low.yaml:1:20"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("include: [s.yaml]\nname: a\n", "s.yaml:1:11", "s.yaml -> s.yaml"),
        ("include: [b.yaml]\nname: a\n", "b.yaml:1:11", "s.yaml -> b.yaml -> s.yaml"),
        ("include: [gone.yaml]\nname: a\n", "s.yaml:1:11", "no file"),
        ("include: b.yaml\nname: a\n", "s.yaml:1:10", "allowed: a list of files"),
        ("include: [3]\nname: a\n", "s.yaml:1:11", "found 3; allowed: a file's path"),
        ("include: [list.yaml]\nname: a\n", "list.yaml:1:1", "found a list of 1"),
    ],
)
def test_wrong_includes(write, text: str, where: str, words: str) -> None:
    write("include: [s.yaml]\n", "b.yaml")
    write("[1]\n", "list.yaml")
    place, message = failure(write(text))
    assert place == where
    assert words in message


def test_configs_are_equal_whatever_their_file(write) -> None:
    one, two = load_sweep(write("name: a\n")), load_sweep(write("\n\nname: a\n", "t.yaml"))
    assert one == two == SweepConfig(name="a")


def test_base_of_a_file_or_of_nothing(write) -> None:
    file = write("name: a\nbase: {seed: 4}\nsweep: {axes: {model.name: [tiny-s]}}\n")
    assert load_base(file, ["model.name=tiny-m"]).model.name == "tiny-m"
    assert load_base(file).seed == 4
    assert load_base(None) == PointConfig()
    assert load_base(None, ["base.sparsity.page_size=4"]).sparsity.page_size == 4
    with pytest.raises(UserError, match="at least 1"):
        load_base(None, ["sparsity.page_size=0"])
