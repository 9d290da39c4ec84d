"""Published scores come from records, and the pages show the current scores."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab import best_results, recipes_page, speed_page, survival_page
from lab import records as results
from lab import results_plot as plot
from lab import results_table as table
from lab.results_keep import by_epoch, without_folders
from manyheads.tasks.registry import RECIPES
from tests.paths import ROOT


def record(seed: int, bleu: float, **changes: Any) -> dict[str, Any]:
    return {
        "recipe": "translation", "overrides": {"training.seed": seed}, "data": {"source": "en", "target": "de"},
        "metrics": {"bleu_13a": {"value": bleu, "signature": "s"}, "exact_match": {"value": 0.5}},
        "wall_seconds": 7200.0, "hardware": {"cpu": "Some CPU", "threads": 2}, "parameters": 1_234_567, "seed": seed,
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize("page", table.PAGES)
def test_pages_are_up_to_date(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == table.filled(text, table.PAGES[page]), "run `make results`"


def test_the_site_shows_all_recipes_and_settings() -> None:
    for page in recipes_page.TABLES:
        text = recipes_page.with_tables(page, (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
        assert recipes_page.MARKER not in text
        assert all(f"`{name}`" in text for name in RECIPES)
    assert recipes_page.with_tables("index", "text") == "text"


def test_best_results_are_up_to_date() -> None:
    found = json.loads(best_results.FILE.read_text(encoding="utf-8"))
    assert found == best_results.best_results(), "run `make results`"
    assert all(len(results) <= best_results.MAX_RESULTS for results in found.values())


def test_seeds_are_shown_as_mean_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    french = record(1, 50.0, data={"source": "en", "target": "fr"})
    narrow = record(3, 30.0, route={"precision": "bf16"})
    found = [record(1, 40.0), record(2, 42.0), french, narrow, record(1, 10.0, recipe="other")]
    monkeypatch.setattr(results, "records", lambda: found)
    assert results.measured("translation") == [
        "en-de, 2 seeds: bleu_13a 41.0 ± 1.4, exact_match 0.500 ± 0.000 in 2.0 h",
        "en-fr: bleu_13a 50.0, exact_match 0.500 in 2.0 h",
        "en-de, bf16: bleu_13a 30.0, exact_match 0.500 in 2.0 h",
    ]


def test_the_table_is_written_between_its_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "records", lambda kind="runs": [record(1, 40.0)] if kind == "runs" else [])
    monkeypatch.setattr(table, "PAGES", {"results.md": table.PAGES["docs/measured/results.md"]})
    file = tmp_path / "results.md"
    file.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    assert table.main(tmp_path) == 0
    text = file.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n## Translation\n\n| recipe |")
    assert text.endswith(f"\n\nProcessors: (a) 2 threads, Some CPU.\n{table.END}\nafter\n")
    assert "| `translation` en-de | 40.0 | 0.500 | 1,234,567 | 2.0 h (a) | default settings |" in text
    assert "old" not in text
    file.write_text("no markers")
    assert table.main(tmp_path) == 2
    assert file.read_text() == "no markers"


def test_the_first_table_has_one_score_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [record(1, 40.0), record(2, 42.0), record(1, 10.0, recipe="other")]
    monkeypatch.setattr(table, "records", lambda: found)
    monkeypatch.setattr(table, "FIRST", (("translates", "translation", "en-de", "bleu_13a"),))
    assert table.first_table().splitlines()[2] == (
        "| translates | bleu_13a 41.0 ± 1.4 | `translation` | 1,234,567 | 2.0 h |"
    )
    monkeypatch.setattr(table, "FIRST", (("translates", "translation", "en-fr", "bleu_13a"),))
    with pytest.raises(ValueError, match="no record of translation, en-fr"):
        table.first_table()


def row(run: str, perplexity: float, **changes: Any) -> dict[str, Any]:
    names = {key.replace("__", "."): value for key, value in changes.items()}
    return record(
        1, 0.0, recipe="translation/ablate", overrides={"training.steps": 9, "training.seed": 1, **names},
        metrics={"perplexity": {"value": perplexity}, "bleu_13a": {"value": perplexity / 2}}, evidence={"run": run},
    )  # fmt: skip


def test_rows_of_an_ablation_form_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        row("post", 20.0, model__encoder_heads=16, model__decoder_heads=16), row("post", 30.0, model__norm="pre"),
        row("post", 40.0, model__encoder_heads=2, model__decoder_heads=2), row("post", 50.0),
        row("pre", 60.0, vocabulary=7), row("pre", 70.0, vocabulary=7, model__encoder_heads=2, model__decoder_heads=2),
        row("alone", 80.0), record(1, 40.0),
    ]  # fmt: skip
    for module in (results, table):
        monkeypatch.setattr(module, "records", lambda: found)
    alone, _, text = table.table("translation/ablate").split("\n\n", 2)
    assert alone.splitlines()[2] == "| `translation/ablate` en-de | 40.0 | 80.000 | 1,234,567 | 2.0 h (a) | steps=9 |"
    columns = "`post`: perplexity | `post`: bleu_13a | `pre`: perplexity | `pre`: bleu_13a"
    assert text.splitlines() == [
        f"| `translation/ablate` | parameters | {columns} |",
        "| --- | --: | --: | --: | --: | --: |",
        "| base | 1,234,567 | 50.000 | 25.0 | 60.000 | 30.0 |",
        "| heads=2 | 1,234,567 | 40.000 | 20.0 | 70.000 | 35.0 |",
        "| heads=16 | 1,234,567 | 20.000 | 10.0 |  |  |",
        "| norm=pre | 1,234,567 | 30.000 | 15.0 |  |  |",
        "",
        "`post`: en-de, steps=9; 4 runs of 2.0 h on 2 threads, Some CPU  ",
        "`pre`: en-de, steps=9, vocabulary=7; 2 runs of 2.0 h on 2 threads, Some CPU",
    ]
    assert results.measured("translation/ablate") == [
        "en-de, steps=9: perplexity 80.000, bleu_13a 40.0 in 2.0 h",
        "en-de, steps=9, 4 rows: perplexity 20.000 to 50.000, bleu_13a 10.0 to 25.0 in 2.0 h each",
        "en-de, steps=9, vocabulary=7, 2 rows: perplexity 60.000 to 70.000, bleu_13a 30.0 to 35.0 in 2.0 h each",
    ]


def images(recipe: str, width: int, right: float) -> dict[str, Any]:
    return record(
        1, 0.0, recipe=recipe, overrides={"model.depths": [1, 1, 1], "model.widths": [width]},
        data={"items": {"test": 400}}, parameters=width,
        metrics={"top1": {"value": right}}, flops=6e9 * width, target_tokens=1000,
    )  # fmt: skip


def test_image_models_are_shown_with_their_flops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = {"median": 9.6, "min": 9.0, "max": 11.0}
    row = {"model": "cifar10/vit, thin", "parameters": 1234, "forward_flops": 2e6, "images_per_second": rate,
           "limit_images_per_second": 40.2}  # fmt: skip
    kept = {"runs": [images("cifar10/resnet", 8, 0.5)],
            "bench": [{"rows": [row], "hardware": {"cpu": "Some CPU", "threads": 1}}]}  # fmt: skip
    monkeypatch.setattr(table, "records", lambda kind="runs": kept[kind])
    text = table.filled(f"{table.BEGIN}{table.END}", table.PAGES["docs/measured/results.md"])
    assert "| `cifar10/resnet` | 0.500 | 8 | 16.0 | 2.0 h (a) | model.depths=[1, 1, 1], model.widths=[8] |" in text
    assert "| trained on 1 thread, Some CPU |" in text
    assert "| `cifar10/vit`, thin | 1,234 | 2.0 | 10 (9 to 11) | 40 |" in text


def test_speed_is_shown_next_to_the_best_setting_of_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"work": "startup", "case": "first line", "unit": "seconds", "ours": 2.0, "ratio": 0.5, "limit": None,
           "peers": {"fast": 4.0, "other a": 9.0, "other b": 8.0}, "share_of_limit": None,
           "spread": [1.5, 1234.0]}  # fmt: skip
    ceilings = {"memory_gb_per_second": 40.2, "products_gflop_per_second": {"float32": 200.0}}
    record = {"bench": ["startup"], "rows": [row], "ceilings": ceilings, "versions": {"torch": "2"},
              "hardware": {"cpu": "Some CPU", "threads": 2}}  # fmt: skip
    other = record | {"kind": "amx", "date": "2026-11-27", "rows": [row | {
        "spread": None, "errors": {"ours": 0.0123, "other b": 0.004}, "errors_are": "how far off"}]}  # fmt: skip
    lowered = {"bench": ["lowered"], "rows": [
        {"case": "bert", "precision": "int8", "route": "kernels", "ratio": 1.5, "error": 0.0}]}  # fmt: skip
    kept = {"bench/avx512": [record], "bench/amx": [other, lowered]}
    monkeypatch.setattr(speed_page, "records", lambda kind: kept.get(kind, []))
    amx, text = speed_page.speed_tables().split("### AVX-512 without AMX")
    assert amx.startswith("### AMX\n\n| `startup`, seconds | manyheads (range) | error | peers (error) | ratio |")
    assert "| first line | 2 | 0.01 | fast 4; other b 8 (0.004) | 0.5 |  |  |\n\nError: how far off.\n" in amx
    assert "on this hardware on 2026-11-27: 2 threads, Some CPU" in amx
    assert "| bert | int8 | kernels | 1.50 | 0 |" in amx
    assert "| `startup`, seconds | manyheads (range) | peers | ratio | limit | of limit |" in text
    assert "| first line | 2 (1.5 to 1,234) | fast 4; other b 8 | 0.5 |  |  |" in text
    assert "on this hardware: 2 threads, Some CPU. The machine reads memory at 40 GB/s" in text
    assert text.endswith("multiplies matrices at 200 GFLOP/s in float32. We used torch 2.")


def test_accuracy_is_drawn_against_size_and_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [images("cifar10/resnet", 16, 0.6), images("cifar10/resnet", 8, 0.5), images("cifar10/vit", 8, 0.4),
             record(1, 0.0, recipe="cifar10/resnet")]  # fmt: skip
    deeper = images("cifar10/resnet", 32, 0.9)  # a teacher, trained in another way
    found.append(deeper | {"overrides": {**deeper["overrides"], "model.depths": [2, 2, 2]}})
    monkeypatch.setattr(plot, "records", lambda: found)
    assert plot.points() == {
        "cifar10/resnet": [(8, 16e6, 0.5, pytest.approx(0.049)), (16, 32e6, 0.6, pytest.approx(0.048, abs=1e-5))]
    }
    assert plot.draw(tmp_path / "widths.png").read_bytes().startswith(b"\x89PNG")


def test_the_data_curve_plots_accuracy_over_training_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def one(recipe: str, count: int, right: float, claim: str = "e") -> dict[str, Any]:
        found = images(recipe, 8, right)
        return found | {"data": {"items": {"train": count, "test": 400}}, "evidence": {"claim": claim}}

    found = [one("cifar10/vit", 5000, 0.5), one("cifar10/vit", 1000, 0.3), one("cifar10/resnet", 1000, 0.4)]
    monkeypatch.setattr(plot, "records", lambda: [*found, one("cifar10/vit", 2000, 0.9, "c"), images("x", 8, 0.1)])
    assert plot.hunger() == {"cifar10/resnet": [(1000, 0.4)], "cifar10/vit": [(1000, 0.3), (5000, 0.5)]}
    out = plot.draw_hunger(tmp_path / "hunger.png")
    assert out is not None
    assert out.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(plot, "records", list)
    assert plot.draw_hunger(tmp_path / "none.png") is None
    assert plot.draw_readings(tmp_path / "none.png") is None
    assert plot.draw_halting(tmp_path / "none.png") is None


def test_records_are_complete() -> None:
    for found in results.records():
        assert {"recipe", "overrides", "data", "metrics", "wall_seconds", "hardware", "flops", "parameters", "seed",
                "commit"} <= set(found)  # fmt: skip
        assert all("value" in metric for metric in found["metrics"].values())


def test_records_contain_no_paths() -> None:
    given = {"data": "/home/someone/corpus/train", "pairs": 3, "files": ["a/b.en", "c.de"], "none": None}
    assert without_folders(given) == {"data": "train", "pairs": 3, "files": ["b.en", "c.de"], "none": None}


def test_curves_of_runs_validated_per_epoch(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"

    def curves(*entries: dict[str, Any]) -> list[dict[str, dict[str, float]]]:
        file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        return by_epoch(file)

    first: list[dict[str, Any]] = [
        {"step": 5, "epoch": 0, "loss": 0.8, "accuracy": 0.5}, {"step": 10, "epoch": 1, "loss": 0.6, "accuracy": 0.7},
        {"step": 10, "epoch": 1, "validation": {"loss": 0.65, "accuracy": 0.6}},
    ]  # fmt: skip
    assert curves(*first, {"step": 15, "epoch": 1, "loss": 0.1, "accuracy": 1.0}) == [
        {"training": {"loss": 0.7, "accuracy": 0.6}, "validation": {"loss": 0.65, "accuracy": 0.6}}
    ]
    assert curves(*first, {"step": 15, "epoch": 1, "validation": {"loss": 0.5}}) == []  # between two epochs
    assert curves({"step": 10, "epoch": 1, "loss": 0.6}, first[2]) == []  # no accuracy in training


def test_the_speedup_of_processes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"1": [900.0, 1000.0, 1100.0], "2 sharded": [1400.0, 1500.0, 1700.0]}
    ranks = {"survival": "ranks", "tokens_per_second": speeds, "hardware": {"cpu": "Some Processor"}}
    monkeypatch.setattr(survival_page, "records", lambda kind: [ranks])
    rows = survival_page.throughput().splitlines()
    assert rows[2:4] == ["| 1 | 1,000 (900 to 1,100) | 1.00 |", "| 2, sharded | 1,500 (1,400 to 1,700) | 1.50 |"]
    monkeypatch.setattr(survival_page, "records", lambda kind: [{"survival": "ranks"}])
    assert survival_page.throughput() == ""


def test_image_wait_time_has_a_column_per_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        {"data": "Parquet", "model": "m", "workers": n, "waiting": {"median": w}, "images_per_second": {"median": r}}
        for n, w, r in ((1, 0.02, 98.0), (0, 0.5, 50.0))
    ]
    record = {"bench": "image-data", "cases": cases, "size": [5, 4], "hardware": {"cpu": "Some Processor", "cores": 2}}
    monkeypatch.setattr(survival_page, "records", lambda kind: [record])
    rows = [line for line in survival_page.image_data().splitlines() if line.startswith("|")]
    assert rows[0].endswith("| `workers=0` | `workers=1` |")
    assert rows[2] == "| m, Parquet | 50.0% (50) | 2.0% (98) |"


def test_best_results_have_one_row_for_each_language_pair_and_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    french = {"data": {"source": "en", "target": "fr"}}
    longer = {"training.steps": 9}
    found = [
        record(1, 40.0),
        record(2, 30.0, overrides={"training.seed": 2, **longer}),
        record(1, 50.0, **french),
        record(1, 51.0, overrides=longer, **french),
        record(1, 20.0, overrides={"preset": "convs2s/rival"}),
        record(1, 99.0, overrides={"scored": "validation"}),
    ]
    monkeypatch.setattr(best_results, "records", lambda: found)
    shown = best_results.best_results()["translation"]
    assert [(result["score"], result["settings"]) for result in shown] == [
        ("40.0", []),
        ("20.0", ["preset=convs2s/rival"]),
        ("51.0", ["target=fr", "training.steps=9"]),
    ]
