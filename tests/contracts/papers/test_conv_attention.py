"""Attention as convolution: the error falls with the sharpness; the command writes a picture and a record."""

import json
from pathlib import Path

import pytest

from papers.command import run
from papers.conv_attention.__main__ import main
from papers.conv_attention.theorem import convolution_errors


def test_the_error_equals_a_neighbors_weight() -> None:
    measured = convolution_errors((3, 5), (5.0, 20.0, 46.0), size=8, channels=2)
    assert measured.parameters == {3: 9 * 3 + (9 * 2 + 1) * 2, 5: 25 * 3 + (25 * 2 + 1) * 2}
    for errors in measured.errors.values():
        assert 1e-3 < errors[0] < 0.3
        assert 1e-10 < errors[1] < 1e-6
        assert errors[2] <= 1e-12
    assert [line.split()[0] for line in str(measured).splitlines()] == ["alpha", "5", "20", "46"]
    for kernels, alphas, message in (
        ((4,), (1.0,), "odd"),
        ((9,), (1.0,), "up to the image size"),
        ((), (1.0,), "no kernels"),
    ):
        with pytest.raises(ValueError, match=message):
            convolution_errors(kernels, alphas, size=8)
    with pytest.raises(ValueError, match="alpha -1"):
        convolution_errors((3,), (-1.0,), size=8)


def test_the_command_prints_the_table_and_writes_the_curve_and_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "theorem",
        "--kernels",
        "3",
        "--alphas",
        "10",
        "46",
        "--size",
        "6",
        "--channels",
        "2",
        "--out",
        str(tmp_path / "t"),
    ]
    assert run(main, words) == 0
    assert capsys.readouterr().out.startswith("alpha")
    result = json.loads((tmp_path / "t" / "result.json").read_text())
    (metric,) = result["metrics"].items()
    assert metric[0] == "log10_error_3x3"
    assert metric[1]["value"] < -12
    assert len(result["errors"]["3x3"]) == 2
    assert (tmp_path / "t" / "error.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_size_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["theorem", "--kernels", "4"]) == 2
    assert capsys.readouterr().err == "manyheads: kernels 4: expected odd sizes up to the image size 16\n"
