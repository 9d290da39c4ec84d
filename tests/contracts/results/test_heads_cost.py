"""Time of attention over the number of heads: the record, its table and its picture."""

from pathlib import Path
from typing import Any

import pytest

from lab import heads_cost
from lab.heads_cost import KERNELS, QUICK, Layer, flops
from manyheads.files import read_json


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("heads") / "heads.json"
    assert heads_cost.main(["--quick", "--out", str(out)]) == 0
    return read_json(out, "")


def test_every_kernel_and_part_is_measured(record: Any) -> None:
    curves = {(curve["kernel"], curve["part"]): curve for curve in record["curves"]}
    assert len(curves) == 4
    for curve in curves.values():
        assert curve["heads"] == [*QUICK.heads]
        assert curve["ratio"][0] == 1.0
        assert all(low <= ratio <= high for ratio, (low, high) in zip(curve["ratio"], curve["quartiles"], strict=True))
        assert all(seconds > 0 for seconds in curve["seconds"])
    assert record["hardware"]["threads"] == 1


def test_flops_do_not_depend_on_the_number_of_heads() -> None:
    # four projections of width 32 and two products of 8 x 8 weights with vectors of width 32, 2 FLOPs each
    expected = 2 * (4 * 8 * 32 * 32 + 2 * 8 * 8 * 32)
    assert [flops(32, 8, heads) for heads in (1, 2, 8, 32)] == [expected] * 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_training_step_changes_all_weights(kernel: str) -> None:
    layer = Layer(16, 8, 4, KERNELS[kernel])
    before = {name: parameter.detach().clone() for name, parameter in layer.attention.named_parameters()}
    layer.train()
    changed = {name for name, p in layer.attention.named_parameters() if not p.equal(before[name])}
    # a bias of the keys adds a constant to the scores of a query, which the softmax removes
    assert {*before} - {"key.bias"} <= changed


def test_table_and_picture_show_the_record(record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heads_cost, "records", lambda kind: [{"bench": ["growth"]}, record])
    lines = heads_cost.section().splitlines()
    assert lines[0] == "## Number of heads"
    assert "| width | tokens | kernel | measured | GFLOPs | 1 head | 2 heads | 4 heads |" in lines
    assert len([line for line in lines if line.startswith("| 32 | 8 | ")]) == 4
    assert heads_cost.draw(record, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(heads_cost, "records", lambda kind: [])
    assert heads_cost.section() == ""


def test_a_quick_run_writes_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heads_cost, "RECORD", tmp_path / "heads.json")
    assert heads_cost.main(["--quick"]) == 0
    assert not [*tmp_path.iterdir()]
