"""Site files: what they say, and mistakes in them with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_lab.config.site import derived_cpus, load_site
from sparrow_lab.errors import UserError

ROOT = Path(__file__).parents[2]


def site(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "slurm").glob("*.yaml")))
def test_the_shipped_sites_are_right(name: str) -> None:
    assert load_site(ROOT / "slurm" / name).time > 0


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("12:30:00", 750), ("2-00:00:00", 2880), ("00:00:30", 1), ("'4:00:00'", 240)],
)
def test_a_time_is_minutes_or_a_clock(tmp_path: Path, text: str, minutes: int) -> None:
    assert load_site(site(tmp_path, f"time: {text}\ngrace: 5\n")).time == minutes


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("partion: gpu\n", "1:1", "unknown key 'partion' (did you mean 'partition'?)"),
        ("gpus: two\n", "1:7", "gpus: found the text 'two'; allowed: a whole number, at least 0"),
        ("gpus: 1\ntime: 12:30\n", "2:7", "found the text '12:30'; allowed: whole minutes"),
        ("time: 12h\n", "1:7", "hours:minutes:seconds as in 12:30:00"),
        ("mem: 32\n", "1:6", "found 32; allowed: a whole number with its unit, such as 32G"),
        ("on_preempt: cancel\n", "1:13", "allowed: requeue, resubmit"),
        ("extra:\n  array: 0-3\n", "2:3", "'array' is to be a key of its own or set by the tool"),
        ("extra: {--mail-type: END}\n", "1:9", "'--mail-type' is to be without dashes"),
        ("time: 2\ngrace: 61\n", "2:8", "61 s is more than half of the time, 2 min"),
        ("time: 1\n", "1:7", "60 s is more than half of the time, 1 min"),
        ("grace: 1\n", "1:8", "at least 5 and at most 3600"),
        ("- gpu\n", "1:1", "allowed: a mapping with partition"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path, text: str, where: str, said: str
) -> None:
    path = site(tmp_path, text)
    with pytest.raises(UserError) as error:
        load_site(path)
    assert error.value.where == f"{path}:{where}"
    assert said in error.value.message


def test_what_is_not_stated_follows_from_the_gpus(tmp_path: Path) -> None:
    assert derived_cpus(load_site(site(tmp_path, "gpus: 2\n")), threads=1) == 8
    assert derived_cpus(load_site(site(tmp_path, "time: 5\n")), threads=3) == 3
    assert derived_cpus(load_site(site(tmp_path, "gpus: 2\ncpus: 1\n")), threads=3) == 1


def test_a_key_knows_its_line(tmp_path: Path) -> None:
    path = site(tmp_path, "# my cluster\npartition: gpu\n")
    assert load_site(path).where("partition") == f"{path}:2:12"
    assert load_site(path).where("account") == str(path)
