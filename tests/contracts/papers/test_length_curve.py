"""Curves of metrics over the input length, from recorded runs."""

import json
import re
from pathlib import Path

import pytest

from lab.records import RESULTS
from papers.command import run
from papers.universal.__main__ import main
from papers.universal.length_curve import curve, draw, read_records

RUNS = RESULTS / "runs"
WHOLE = json.loads((RUNS / "copy-universal.json").read_text())
UNIVERSAL, TRANSFORMER = RUNS / "copy-universal.json", RUNS / "copy-transformer.json"


def names(picture: Path) -> list[str]:
    """Return the texts of an SVG file, from the comments next to their outlines."""
    return re.findall("<!-- (.*?) -->", picture.read_text())


def directory(path: Path, record: Path) -> Path:
    path.mkdir()
    (path / "result.json").write_text(record.read_text())
    return path


def test_every_run_has_a_curve_for_any_name(tmp_path: Path) -> None:
    first, second = (directory(tmp_path / name, UNIVERSAL) for name in ("first", "second"))
    out = tmp_path / "curves.svg"
    assert run(main, ["curve", str(first), str(second), str(TRANSFORMER), "--out", str(out)]) == 0
    assert {f"universal ({first})", f"universal ({second})", "transformer"} <= set(names(out))


def test_names_are_below_the_curves(tmp_path: Path) -> None:
    record = json.loads(UNIVERSAL.read_text())
    long = "universal, network.halting=basic, network.steps=6, network.halting_bias=-1, training.steps=8000"
    draw([(long, record), ("b", record)], tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    height = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', picture)
    place = re.search(rf"<!-- {re.escape(long)} -->\s*<g[^>]*translate\([\d.]+ ([\d.]+)\)", picture)
    assert height is not None
    assert place is not None
    assert float(place[1]) > 0.85 * float(height[1])


def test_a_curve_equals_its_record() -> None:
    record = json.loads(UNIVERSAL.read_text())
    assert curve(record, "exact_match") == (
        [20, 40, 60, 80, 120, 160, 240, 400],
        list(record["curve"]["exact_match"].values()),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: expected a finished run"),
        ("{", "invalid JSON"),
        ("[]", "expected the record of a run, a JSON object"),
        ('{"recipe": "translation"}', "record of translation has no accuracy by length"),
        *(
            (
                json.dumps({key: value for key, value in WHOLE.items() if key != missing}),
                "the record lacks recipe, overrides",
            )
            for missing in ("recipe", "overrides", "data")
        ),
        (json.dumps(WHOLE | {"curve": WHOLE["curve"] | {"exact_match": {"20": "x"}}}), "expected numbers, found"),
    ],
)
def test_records_without_a_curve_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    assert run(main, ["curve", str(tmp_path), "--out", str(tmp_path / "a.png")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(tmp_path / "result.json") in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "a.png").exists()


def test_halting_models_have_panels_for_steps(tmp_path: Path) -> None:
    halting = [RUNS / f"halting-{algorithm}.json" for algorithm in ("copy", "reverse")]
    records = read_records(halting)
    assert [name for name, _ in records] == ["universal/copy", "universal/reverse"]  # several tasks: by their names
    draw([*records, ("fixed", json.loads(UNIVERSAL.read_text()))], tmp_path / "a.svg")
    assert {"steps of the encoder", "steps of the decoder", "fixed"} <= set(names(tmp_path / "a.svg"))
    draw(read_records([UNIVERSAL]), tmp_path / "b.svg")
    assert "steps of the encoder" not in names(tmp_path / "b.svg")


def test_run_names_are_unique() -> None:
    assert [name for name, _ in read_records([UNIVERSAL, TRANSFORMER])] == ["universal", "transformer"]
