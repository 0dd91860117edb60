"""The lines of the kernel bench, its CSV, and what it says without a GPU."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from sparrow_kernels.bench.row import Row, byte_floor, flop_floor, write_csv
from sparrow_lab.cli import main

LINE = Row("op", "batch 2", "ours", ms=0.5, bytes=10**9, flops=0, floor_ms=0.25, aim_ms=0.4)


def test_a_row_derives_ratio_rate_and_whether_its_aim_is_reached() -> None:
    assert LINE.ratio == 2.0
    assert LINE.tb_per_s == pytest.approx(2.0)
    assert LINE.reached is False
    assert Row("op", "", "", 0.4, 0, 0, 0.1, aim_ms=0.4).reached is True
    assert Row("op", "", "", 0.4, 0, 0, 0.1).reached is None


def test_floors_are_bytes_and_operations_over_measured_rates() -> None:
    assert byte_floor(4_300_000_000) == pytest.approx(1.0)
    assert flop_floor(694 * 10**9) == pytest.approx(1.0)


def test_the_csv_holds_every_field_and_the_derived_columns(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernels.csv"
    write_csv([LINE, LINE], path)
    lines = list(csv.DictReader(path.open(encoding="utf-8")))
    assert len(lines) == 2
    assert lines[0]["op"] == "op" and float(lines[0]["ratio"]) == 2.0
    assert lines[0]["reached"] == "False"


def test_an_unknown_op_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "kernels", "--only", "no_such_op"])
    assert stop.value.code == 2
    assert "--only: unknown op 'no_such_op'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_bench_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "kernels"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "error: bench kernels: needs a CUDA device, and torch finds none on this machine\n"
    )
