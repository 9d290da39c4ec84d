"""Page of claims: intervals compared with SciPy, verdicts from records, and open claims."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab import capacity_page, results_keep, rivals_page
from lab import evidence_page as page
from lab.evidence.listed import LIST, Listed, read_list
from tests.paths import ROOT

CLAIMS = """others = ["c"]
[claims]
a = "it is better"
b = "a curve"
c = "our recipe"
[limits]
b = "one seed"
"""


def record(seed: int, value: float, run: str = "") -> dict[str, Any]:
    return {"seed": seed, "metrics": {"accuracy": {"value": value}}, "evidence": {"run": run}}


def of(name: str, *values: float) -> dict[str, Any]:
    return {f"{name}-{seed}": record(seed, value, f"{name}-{seed}") for seed, value in enumerate(values, 1)}


def bar(**fields: Any) -> page.Bar:
    return page.Bar(claim="a", metric="accuracy", **fields)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_the_interval_equals_scipy(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = [0.8 + 0.01 * i**2 for i in range(count)], [0.7 + 0.03 * i for i in range(count)]
    theirs = stats.ttest_rel(first, second).confidence_interval(0.95)
    difference, half = page.paired(first, second)
    assert (difference - half, difference + half) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_a_difference_counts_if_large_and_significant() -> None:
    better = bar(of="with", than="without", least=0.05)
    sure = of("with", 0.80, 0.81, 0.82) | of("without", 0.70, 0.72, 0.71)
    found, met = better.judged(sure, 3)
    assert met == "met"
    assert found == "+0.100 (+0.075 to +0.125, paired, 95%, 3 seeds)"
    for others, least, verdict in (
        ((0.77, 0.78, 0.78), 0.05, "refuted"),  # at most +0.047: the required difference is excluded
        ((0.60, 0.81, 0.72), 0.05, "not met"),  # the interval includes zero and 0.05
        ((0.9, 0.9, 0.9), 0.0, "refuted"),
    ):
        records = of("with", 0.80, 0.81, 0.82) | of("without", *others)
        assert bar(of="with", than="without", least=least).judged(records, 3)[1] == verdict
        untested = bar(of="with", than="without", least=least, untested="no power")
        assert untested.judged(records, 3)[1] == "not tested"
    assert better.judged(of("with", 0.8, 0.8, 0.8) | of("without", 0.7, 0.7), 3) == ("3 of 3, of the other 2", "waits")
    assert better.judged(of("with-more", 0.8, 0.8, 0.8), 3) == ("0 of 3, of the other 0", "waits")


def test_a_number_is_rejected_and_another_library_named() -> None:
    assert bar(of="x", least=40.0).judged({"x": record(1, 40.2)}, 1) == ("40.200", "met")
    assert bar(of="x", most=1.47).judged(of("x", 1.5, 1.46, 1.48), 3)[1] == "not met"
    assert bar(of="x", most=1.47).judged(of("x", 1.45), 3) == ("1 of 3", "waits")
    theirs = of("peers/x-transformers", 0.80, 0.82, 0.84)  # the standard error is 0.0115
    near = bar(of="x", than="peers/x-transformers", errors=1)
    assert near.judged(of("x", 0.81, 0.81, 0.81) | theirs, 3)[1] == "met"
    assert near.judged(of("x", 0.80, 0.80, 0.80) | theirs, 3)[1] == "not met"  # the interval includes zero
    assert near.judged(of("x", 0.70, 0.72, 0.74) | theirs, 3)[1] == "refuted"
    with pytest.raises(ValueError, match="expected least, most, or than with errors or margin"):
        bar(of="x")
    with pytest.raises(ValueError, match="expected least"):
        bar(of="x", errors=1)


def test_claims_are_evaluated_from_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = '[[run]]\nname = "{}"\nclaim = "{}"\nshows = "it"\ntrain = "translation"\nminutes = 7\n'
    bars = '[[bar]]\nclaim = "a"\nof = "x"\nmetric = "accuracy"\nleast = 0.5\n'
    file = tmp_path / "list.toml"
    file.write_text(CLAIMS + run.format("x", "a") + run.format("y", "b") + bars)

    def rows(*records: tuple[str, float]) -> list[str]:
        found = {name: record(1, value, name) for name, value in records}
        monkeypatch.setattr(page, "kept", lambda _: found)
        return page.source_claims(file).splitlines()[4:]

    assert rows() == ["| (a) | it is better | **not tested** |  |", "| (b) | a curve | **waits** | one seed |"]
    assert "`x` at least 0.5 | accuracy | needs 7 minutes of one core | **not tested** |" in page.bars_table(file)
    assert ["**shown**" in row for row in rows(("x", 0.6))] == [True, False]
    assert "**not decided**" in rows(("x", 0.4))[0]
    assert "**measured**" in rows(("y", 0.1))[1]
    assert "(c)" not in "".join(rows())
    assert "| (c) | our recipe |" in page.other_claims(file)
    file.write_text(file.read_text() + "worst = 1\n")
    with pytest.raises(ValueError, match=r"list\.toml: bar: .*worst"):
        page.read_bars(file)


def test_every_verdict_of_the_page_is_defined_there() -> None:
    text = (ROOT / "docs" / "measured" / "evidence.md").read_text(encoding="utf-8").split("## Requirements")[0]
    rows = re.findall(r"^\| \([a-z]\d?\) \| .*? \| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert len(rows) == len(read_list(LIST)[0])
    assert {part.removeprefix("in part ") for row in rows for part in row.split(", ")} <= {
        *re.findall(r"^\| ([a-z ]+) \| [a-z ]", text, re.MULTILINE)
    }


def test_the_interval_of_a_lead_includes_sentences_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"transformer": [10.0, 11.0, 12.0], "lstm": [9.0, 10.0, 11.0], "gnmt": [7.0]}
    curves = {row: [[{"flops": 1.0, "bleu_moses_lc": s}] for s in seeds] for row, seeds in scores.items()}
    monkeypatch.setattr(rivals_page, "curves", lambda _: curves)
    tested = {"difference": 4.0, "interval": [4 - 1.96, 4 + 1.96]}  # a standard error of 1
    monkeypatch.setattr(rivals_page, "differences", lambda _: {"gnmt": tested})
    assert rivals_page.seed_deviation() == (1.0, 4)  # gnmt has one seed only
    half = 2.776 * (1 + 1 / 3 + 1) ** 0.5  # Student's t of 4 degrees of freedom; seeds of the Transformer and of GNMT
    assert rivals_page.interval("gnmt", "fr") == pytest.approx((4 - half, 4 + half))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.50, 0.51, 0.49), "met"), ((0.40, 0.60, 0.44), "not met"), ((0.40, 0.41, 0.39), "refuted")],
)
def test_a_margin_needs_the_whole_interval(values: tuple[float, ...], verdict: str) -> None:
    near = bar(of="x", than="y", margin=0.04)
    assert near.judged(of("x", *values) | of("y", 0.51, 0.52, 0.51), 3)[1] == verdict
    assert near.words == "`x` worse than `y` by at most 0.04"


def test_a_slope_is_judged_by_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"lstm": [-0.1, -0.11, -0.12], "convolution": [0.1, -0.1, 0.05]}
    monkeypatch.setattr(capacity_page, "differences", lambda entry: found)
    assert page.Slope(claim="y", of="capacity", rival="lstm").judged() == (
        "-0.110 (-0.135 to -0.085, paired, 95%, 3 seeds)", "met"
    )  # fmt: skip
    assert page.Slope(claim="y", of="capacity", rival="convolution").judged()[1] == "not met"


def test_a_lower_loss_is_better() -> None:
    losses = of("with", 1.0, 1.1, 1.05) | of("without", 1.5, 1.58, 1.56)
    assert bar(of="with", than="without", least=0.1, lower=True).judged(losses, 3) == (
        "+0.497 (+0.459 to +0.535, paired, 95%, 3 seeds)", "met"
    )  # fmt: skip
    assert bar(of="without", than="with", least=0.0, lower=True).judged(losses, 3)[1] == "refuted"
    with pytest.raises(ValueError, match="lower needs"):
        bar(of="with", most=1.0, lower=True)


def test_claims_are_about_listed_runs() -> None:
    claims, listed = read_list(LIST)
    entries = {run.entry: run for run in listed}
    for each in page.read_bars():
        assert each.claim in claims
        if isinstance(each, page.Slope):
            assert entries[each.of].claim == each.claim
            assert each.rival in capacity_page.NAMES
            continue
        if isinstance(each, page.Lead):
            assert entries[f"rivals-{each.target}-{each.rival}"].claim == each.claim
            continue
        claims_of_runs = (
            "x" if each.claim[0] in "wx" else each.claim
        )  # The rows of parts-3 and parts-12 show all of these.
        assert entries[each.of.partition("-*")[0]].claim == claims_of_runs
        if each.than is not None:
            other = entries[each.than.removeprefix("peers/").partition("-*")[0]]
            assert other.claim == claims_of_runs
            assert (other.by == "transformers") == each.than.startswith("peers/")


def test_a_test_with_some_of_its_seeds_waits_and_one_without_any_says_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = '[[run]]\nname = "x"\nclaim = "a"\nshows = "it"\ntrain = "translation"\nminutes = 7\n'
    bars = '[[bar]]\nclaim = "a"\nof = "x"\nmetric = "accuracy"\nleast = 0.5\n'
    file = tmp_path / "list.toml"
    file.write_text(CLAIMS + run + 'seeds = [1, 2]\ndevice = "cuda"\n' + bars)
    monkeypatch.setattr(page, "kept", lambda _: {})
    assert "needs 14 minutes of a GPU | **not tested** |" in page.bars_table(file)
    monkeypatch.setattr(page, "kept", lambda _: of("x", 0.6))
    assert "1 of 2 | waits |" in page.bars_table(file)


def test_a_record_without_the_name_of_its_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = '[[run]]\nname = "x"\nclaim = "a"\nshows = "it"\ntrain = "translation"\nminutes = 7\n'
    bars = '[[bar]]\nclaim = "a"\nof = "x"\nmetric = "accuracy"\nleast = 0.5\n'
    file = tmp_path / "list.toml"
    file.write_text(CLAIMS + run + bars)
    monkeypatch.setattr(page, "kept", lambda _: {"x": {"seed": 1, "metrics": {"accuracy": {"value": 0.4}}}})
    assert "0.400 | **not met** |" in page.bars_table(file)


def test_a_slope_with_some_of_its_seeds_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = '[[run]]\nname = "x"\nclaim = "a"\nshows = "it"\ntrain = "translation"\nminutes = 7\nseeds = [1, 2]\n'
    file = tmp_path / "list.toml"
    file.write_text(f'{CLAIMS}{run}[[slope]]\nclaim = "a"\nof = "x"\nrival = "lstm"\n')
    for values, found in ((list[float](), "needs 14 minutes of one core"), ([-0.1], "1 of 2 | waits")):
        monkeypatch.setattr(page.capacity_page, "differences", lambda entry, values=values: {"lstm": values})
        assert found in page.bars_table(file)


def test_a_run_was_planned_before_it_started() -> None:
    planned = {run.name: run.planned for run in read_list(LIST)[1]}
    for name, kept in results_keep.kept().items():
        if started := kept.get("evidence", {}).get("started"):  # Records made before 2026-11-29 have no such entry.
            plan = planned[kept["evidence"]["run"]]
            assert plan is not None, f"{name}: its run has no `planned` in {LIST.name}"
            assert plan < datetime.fromisoformat(started), name


def test_a_plan_needs_a_time_with_its_zone(tmp_path: Path) -> None:
    run = '[[run]]\nname = "x"\nclaim = "a"\nshows = "it"\ntrain = "translation"\nminutes = 7\nplanned = '
    file = tmp_path / "list.toml"
    file.write_text(f"{CLAIMS}{run}2026-11-29T21:00:00Z\n")
    assert read_list(file)[1][0].planned == datetime(2026, 11, 29, 21, tzinfo=UTC)
    for wrong in ("2026-11-29T21:00:00", "2026-11-29", '"today"'):
        file.write_text(f"{CLAIMS}{run}{wrong}\n")
        with pytest.raises(ValueError, match="run 'x': planned is"):
            read_list(file)


def test_records_with_other_settings_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_keep, "RECORDS", tmp_path)
    (tmp_path / "runs").mkdir()
    run = Listed("x-1", "x", "a", "it", ("translation", "training.steps=5"), 1, "cpu")
    now, before = ({"evidence": {"run": "x-1", "settings": [words]}} for words in (*run.settings, "translation"))
    for about, names in ((now, ["x-1", "y"]), (before, ["y"])):
        for name, record in (("x-1", about), ("y", {})):
            (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(record))
        assert list(page.kept([run])) == names
