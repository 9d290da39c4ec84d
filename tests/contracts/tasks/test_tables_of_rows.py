"""Tables in, tables out: each verb keeps all rows and columns of a table, and adds its predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import cli, directory
from manyheads.data.readers.rows import Row
from manyheads.models.presets import build, preset
from manyheads.service.server import Settings, service_of
from manyheads.tasks.tables import RowTask, predict_table, text_reader
from tests.support import services
from tests.support.refusals import refused
from tests.support.services import Ask, asked_of

TEXTS = ["the cat sat", "the dog", "on the mat", "the café, naïve"]
NOTES = ['a, "b"\nc', "", "x\ty", "z"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    labels = ("negative", "positive")
    services.bert(folder / "classifier", head="sequence", labels=labels)
    services.bert(folder / "several", head="sequence", labels=labels, target="multi-label")
    services.bert(folder / "number", head="sequence", labels=("LABEL_0",), target="regression")
    services.bert(folder / "tagger", head="token", labels=("O", "B-PLACE", "I-PLACE"))
    services.bert(folder / "answerer", head="question")
    services.bert(folder / "bert", head="masked_lm")
    services.translator(folder / "translator")
    torch.manual_seed(0)
    vit = build(preset("vit/2-8", width=16, layers=2, heads=2, labels=("cat", "dog")))
    sizes = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.5]}
    directory.save(folder / "vit", vit, preprocessing=sizes)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    pd.DataFrame({"id": [7, 3, 9, 5], "text": TEXTS, "note": NOTES}).to_csv(path, index=False)
    return path


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True)
    return pd.read_csv(path, keep_default_na=False, sep="\t" if path.suffix == ".tsv" else ",")


def predict(verb: str, model: Path, source: Path, out: str, *options: str) -> pd.DataFrame:
    path = source.with_name(out)
    assert cli.main([verb, str(model), "--input", str(source), "--output", str(path), *options]) == 0
    return read(path)


@pytest.mark.parametrize("out", ["p.csv", "p.jsonl", "p.parquet"])
def test_classify_keeps_rows_and_columns(out: str, runs: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predict("classify", runs / "classifier", table, out, "--scores")
    assert capsys.readouterr().err == f"manyheads: {table.with_name(out)}: wrote 4 rows\n"
    columns = ["id", "text", "note", "prediction", "probability", "probability_negative", "probability_positive"]
    assert list(found) == columns
    assert found.id.astype(int).tolist() == [7, 3, 9, 5]
    assert found.text.tolist() == TEXTS
    assert found.note.tolist() == NOTES
    expected = manyheads.load(runs / "classifier").predict_proba(TEXTS)
    assert found[columns[-2:]].to_numpy() == pytest.approx(expected, rel=1e-5)
    assert found.prediction.tolist() == [("negative", "positive")[i] for i in expected.argmax(1)]
    assert found.probability.tolist() == pytest.approx(expected.max(1).tolist(), rel=1e-5)


def test_types_of_parquet_columns_are_kept(runs: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "text": TEXTS, "n": [1, 2, 3, 4], "when": pd.to_datetime(["2024-05-03"] * 4), "file": [b"\x00"] * 4,
        "kind": pd.Categorical(["x", "y", "x", "y"]), "words": [["a"], [], ["b", "c"], []],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    found = predict("classify", runs / "classifier", tmp_path / "t.parquet", "p.parquet")
    pd.testing.assert_frame_equal(found[list(frame)], frame)
    for suffix in ("csv", "jsonl"):
        assert cli.main(["classify", str(runs / "classifier"), "--input", str(tmp_path / "t.parquet"),
                         "--output", str(tmp_path / f"q.{suffix}")]) == 2  # fmt: skip
        assert not (tmp_path / f"q.{suffix}").exists()
    predict("classify", runs / "classifier", tmp_path / "t.parquet", "p.parquet", "--columns=text=kind", "--overwrite")


def test_jsonl_becomes_parquet(runs: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "n": n, "more": {"a": n}} for n, text in enumerate(TEXTS)]
    rows[2]["n"], rows[3]["late"] = 2.5, "x"
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = predict("classify", runs / "classifier", tmp_path / "t.jsonl", "p.parquet")
    assert found.n.tolist() == [0.0, 1.0, 2.5, 3.0]
    assert found.late.tolist()[3] == "x"
    found = predict("classify", runs / "classifier", tmp_path / "t.jsonl", "p.tsv")
    assert found.late.tolist() == ["", "", "", "x"]
    rows[1]["n"] = "one"
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["classify", str(runs / "classifier"), "--input", str(tmp_path / "t.jsonl"),
                     "--output", str(tmp_path / "q.parquet")]) == 2  # fmt: skip


def test_numbers_and_several_labels(runs: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predict("classify", runs / "number", table, "n.jsonl")
    assert found.prediction.tolist() == pytest.approx(manyheads.load(runs / "number").predict(TEXTS), rel=1e-5)
    found = predict("classify", runs / "several", table, "s.csv", "--threshold", "0")
    assert set(found.prediction) <= {"negative|positive", "positive|negative"}
    assert all(len(cell.split("|")) == 2 for cell in found.probability)
    found = predict("classify", runs / "several", table, "s.csv", "--threshold", "1", "--overwrite", "--scores")
    assert found.prediction.tolist() == [""] * 4
    model = manyheads.load(runs / "several")
    assert found.probability_positive.tolist() == pytest.approx(model.predict_proba(TEXTS)[:, 1], rel=1e-5)
    capsys.readouterr()
    arguments = ["classify", str(runs / "number"), "--input", str(table), "--output", str(table.with_name("q.csv"))]
    assert "this model predicts a number" in refused(capsys, *arguments, "--scores")
    assert "threshold applies to a model" in refused(capsys, *arguments, "--threshold", "0.5")


def test_pairs_are_named_by_columns(runs: Path, tmp_path: Path) -> None:
    pd.DataFrame({"premise": TEXTS, "hypothesis": TEXTS[::-1]}).to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    model = manyheads.load(runs / "classifier")
    found = predict("classify", runs / "classifier", tmp_path / "t.tsv", "p.csv")
    expected = [labels[0].probability for labels in model.classify(TEXTS, TEXTS[::-1])]
    assert found.probability.tolist() == pytest.approx(expected, rel=1e-5)
    found = predict("classify", runs / "classifier", tmp_path / "t.tsv", "q.csv", "--columns", "text=hypothesis")
    expected = [labels[0].probability for labels in model.classify(TEXTS[::-1])]
    assert found.probability.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_other_verbs_add_their_columns(runs: Path, table: Path, tmp_path: Path) -> None:
    tagged = predict("tag", runs / "tagger", table, "tags.jsonl")
    for text, expected in zip(manyheads.load(runs / "tagger").tag(TEXTS), tagged.itertuples(), strict=True):
        assert [word.tag for word in text.words] == expected.tags
        assert [entity.text for entity in text.entities] == [entity["text"] for entity in expected.entities]
    spaced = predict("tag", runs / "tagger", table, "tags.csv", "--words")
    assert [len(tags.split()) for tags in spaced.tags] == [len(text.split()) for text in TEXTS]
    assert predict("tag", runs / "tagger", table, "tags.parquet").entities.map(len).tolist()
    translated = predict("translate", runs / "translator", table, "t.jsonl", "--beam", "1")
    assert translated.translation.tolist() == manyheads.load(runs / "translator").translate(TEXTS, beam=1)
    vectors = manyheads.load(runs / "classifier").embed(TEXTS, as_array=True)
    assert vectors.shape == (4, 16)
    for out in ("e.parquet", "e.jsonl"):
        assert np.stack(list(predict("embed", runs / "classifier", table, out).vector)) == pytest.approx(vectors)
    asked = tmp_path / "q.csv"
    pd.DataFrame({"q": ["the cat", "the dog"], "context": TEXTS[:2]}).to_csv(asked, index=False)
    answers = predict("answer", runs / "answerer", asked, "a.csv", "--columns", "question=q")
    best = [ranked[0] for ranked in manyheads.load(runs / "answerer").answer(["the cat", "the dog"], TEXTS[:2], 1)]
    assert answers.answer.tolist() == [found.text for found in best]
    assert answers[["start", "end"]].to_numpy().tolist() == [[found.start, found.end] for found in best]
    masked = tmp_path / "m.csv"
    pd.DataFrame({"text": ["the [MASK] sat"]}).to_csv(masked, index=False)
    (fill,) = manyheads.load(runs / "bert").fill("the [MASK] sat", 1)
    assert predict("fill", runs / "bert", masked, "f.csv").filled.tolist() == [fill.text]


def test_images_of_a_folder(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    for i in range(3):
        Image.fromarray(np.full((8, 8), 80 * i, np.uint8)).save(tmp_path / f"images/{i:02}.png")
    (tmp_path / "images/01.png").write_bytes(b"no image")
    (tmp_path / "t.csv").write_text("image_id,x\n00,a\n01,b\n02,c\n")
    options = ["--columns", "image=image_id", "--folder", "images", "--suffix", ".png"]
    arguments = ["classify", str(runs / "vit"), "--input", str(tmp_path / "t.csv"), *options]
    message = refused(capsys, *arguments, "--output", str(tmp_path / "p.csv"))
    assert "t.csv:3: " in message
    assert "01.png: not an image" in message
    found = predict("classify", runs / "vit", tmp_path / "t.csv", "p.csv", *options, "--skip-bad-lines")
    expected = manyheads.load(runs / "vit").predict_proba([tmp_path / "images/00.png", tmp_path / "images/02.png"])
    assert [float(p) for p in found.probability if p] == pytest.approx(expected.max(1).tolist(), rel=1e-5)
    assert ["not an image" in error for error in found.error] == [False, True, False]
    vectors = predict("embed", runs / "vit", tmp_path / "t.csv", "v.parquet", *options, "--skip-bad-lines").vector
    assert vectors[2] == pytest.approx(manyheads.load(runs / "vit").embed(tmp_path / "images/02.png", as_array=True))
    assert vectors[1] is None
    (tmp_path / "t.csv").write_text("image_id,x\n00,a\n03,b\n")
    capsys.readouterr()
    assert "t.csv:3: " in refused(capsys, *arguments, "--output", str(tmp_path / "q.csv"))
    frame = pd.DataFrame({"image": [{"bytes": (tmp_path / "images/00.png").read_bytes(), "path": "x"}]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = predict("classify", runs / "vit", tmp_path / "t.parquet", "p.parquet")
    assert found.probability.tolist() == pytest.approx([expected.max(1)[0]], rel=1e-5)


def test_faulty_rows_are_named_or_written_with_an_error(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "p.csv"
    out.write_text("precious")
    rows = [["id", "text"], *([str(i), "the cat"] for i in range(2500))]
    rows[2001][1] = "the cat " * 40
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    arguments = ["classify", str(runs / "classifier"), "--input", str(table), "--output", str(out), "--overwrite"]
    assert "t.csv:2002: this text has 82 tokens, the limit is 32" in refused(capsys, *arguments)
    rows[1801][1] = " "
    rows[7] = ["6"]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert "t.csv:8: expected 2 columns as in the header, found 1" in refused(capsys, *arguments)
    other = [*arguments[:-2], str(tmp_path / "other.jsonl"), "--skip-bad-lines"]
    assert cli.main(other) == 0
    assert capsys.readouterr().err.endswith("3 of them without a prediction (see the column error)\n")
    assert read(tmp_path / "other.jsonl").error[6].startswith(f"{table}:8: expected 2 columns")
    rows[7] = ["6", "the dog"]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert "t.csv:1802: 'text' is blank" in refused(capsys, *arguments)
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []
    assert cli.main([*arguments, "--skip-bad-lines"]) == 0
    assert "wrote 2,500 rows, 2 of them without a prediction" in capsys.readouterr().err
    found = read(out)
    assert found.id.tolist() == list(range(2500))
    assert found.index[found.error != ""].tolist() == [1800, 2000]
    assert found.prediction[1800] == found.prediction[2000] == ""
    assert "shorten it" in found.error[2000]
    assert cli.main([*arguments, "--skip-bad-lines", "--truncate"]) == 0
    assert (read(out).error != "").sum() == 1


def test_one_line_for_each_mistake(runs: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, model = table.with_name("p.csv"), str(runs / "classifier")

    def message(*options: str, source: Path = table, verb: str = "classify", name: str = model) -> str:
        return refused(capsys, verb, name, "--input", str(source), *options)

    assert "give the table to write, too, with --output" in message()
    assert "expected a name in .tsv, .csv, .jsonl, .parquet" in message("--output", "p.xlsx")
    assert "p.csv: directory" in message("--output", str(table.parent / "absent/p.csv"))
    assert "is the input: give another file" in message("--output", str(table), "--overwrite")
    assert "give only one of them" in message("--output", str(out), "--json")
    assert "give only one of them" in message("--output", str(out), "--top", "2")
    assert "texts or images and --input" in message("--output", str(out), "a text")
    assert "no such file" in message("--output", str(out), source=table.with_name("absent.csv"))
    assert "unknown table format" in message("--output", str(out), source=Path(__file__))
    assert "expected a column 'txt', found 'id', 'text', 'note'" in message(
        "--output", str(out), "--columns", "text=txt"
    )
    assert "unknown column 'txt': did you mean text?" in message("--output", str(out), "--columns", "txt=text")
    assert "expected text=NAME,pair=NAME,image=NAME, found 'text'" in message("--output", str(out), "--columns", "text")
    assert "--columns image=: this model reads text and pair only" in message(
        "--output", str(out), "--columns", "image=text"
    )
    assert "--folder: this model reads text and pair only" in message("--output", str(out), "--folder", "x")
    assert "'note' has a tab or line break" in message("--output", str(table.with_name("p.tsv")))
    assert "this model does not support tag" in message("--output", str(out), verb="tag")
    assert "expected .parquet or .jsonl, because a cell holds a vector" in message("--output", str(out), verb="embed")
    assert "--output applies to a table" in refused(capsys, "classify", model, "x", "--output", str(out))
    assert "--question is missing" in refused(capsys, "answer", str(runs / "answerer"))
    out.write_text("precious")
    assert "the file exists: give another name, or pass --overwrite" in message("--output", str(out))
    table.write_text("text,prediction\nthe cat,x\n")
    assert "already has the column 'prediction'" in message("--output", str(out), "--overwrite")
    table.write_text("text\n")
    assert "t.csv: expected a column for the text, found no rows" in message("--output", str(out), "--overwrite")
    assert out.read_text() == "precious"


def test_a_tsv_row_of_empty_cells_is_kept(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\nx\t1\n\t\n\ny\t2\n")
    task = RowTask(text_reader("a"), lambda rows: [{"size": len(a)} for (a,) in rows], {"size": int})
    shown: list[tuple[int, int]] = []
    counts = predict_table(
        tmp_path / "t.tsv", tmp_path / "p.tsv", task, skip_bad_lines=True, report=lambda *done: shown.append(done)
    )
    assert counts == (3, 1)
    assert shown == [(3, 3)]
    lines = (tmp_path / "p.tsv").read_text().split("\n")
    assert lines == ["a\tb\tsize\terror", "x\t1\t1\t", "\t\t\t'a' is blank; fill in or remove the row", "y\t2\t1\t", ""]


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"a": str(i)}) + "\n" for i in range(3500)))
    sizes: list[int] = []

    def predict_block(rows: Any) -> list[dict[str, object] | str]:
        sizes.append(len(rows))
        return [{"b": int(a)} for (a,) in rows]

    def read_row(row: Row[Any]) -> tuple[object, ...]:
        return (row.cells["a"],)

    task = RowTask(read_row, predict_block, {"b": int})
    predict_table(tmp_path / "t.jsonl", tmp_path / "p.csv", task, skip_bad_lines=False, report=lambda *_: None)
    assert sizes == [1000, 1000, 1000, 500]
    assert read(tmp_path / "p.csv").b.tolist() == list(range(3500))


def test_probabilities_and_vectors_as_arrays(runs: Path) -> None:
    model = manyheads.load(runs / "classifier")
    found = model.predict_proba(["the cat", " "])
    assert found.shape == (2, 2)
    assert found[0].sum() == pytest.approx(1)
    assert np.isnan(found[1]).all()
    assert model.predict_proba("the cat") == pytest.approx(found[0])
    assert model.embed("the cat", as_array=True).shape == (16,)
    with pytest.raises(ValueError, match="as_array needs one vector for each item"):
        model.embed(["the cat"], pool="tokens", as_array=True)
    with pytest.raises(ValueError, match="this model predicts a number: call predict"):
        manyheads.load(runs / "number").predict_proba(["the cat"])
    answerer = manyheads.load(runs / "answerer")
    context = "the cat sat on the mat"
    assert answerer.answer(["the cat", "the mat"], context) == answerer.answer(["the cat", "the mat"], [context] * 2)


def test_a_run_learns_images_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data/images").mkdir(parents=True)
    lines = ["image_id,breed"]
    for i in range(24):
        Image.fromarray(np.full((8, 8), 10 * i, np.uint8)).save(tmp_path / f"data/images/{i:02}.png")
        lines.append(f"{i:02},{'dark' if i < 12 else 'light'}")
    (tmp_path / "data/train.csv").write_text("\n".join(lines))
    settings: dict[str, Any] = {
        "data": str(tmp_path / "data"), "steps": 2, "threads": 1, "folder": "images", "suffix": ".png",
        "columns.image": "image_id", "columns.label": "breed",
    }  # fmt: skip
    run = manyheads.train("image-classification", out=tmp_path / "run", **settings)
    found = predict("classify", run.directory, tmp_path / "data/train.csv", "p.csv")
    assert set(found.prediction) <= {"dark", "light"}
    run.predictor.outcome().save_errors(tmp_path / "e.csv")
    errors = (tmp_path / "e.csv").read_text().splitlines()
    assert errors[0].startswith("row,image_id,breed,truth,prediction") or len(errors) == 1
    for row in errors[1:]:
        number, image = row.split(",")[:2]
        assert int(number) == int(image) + 1


def test_many_questions_over_http(runs: Path) -> None:
    service = service_of(Settings({"a": str(runs / "answerer")}))
    context = "the cat sat on the mat"

    async def scene(ask: Ask) -> list[Any]:
        two = ["the cat", "the mat"]
        contexts = [context, context, [context, "the dog"], [context], context, context]
        questions = ["the cat", two, two, two, ["the cat", " "], []]
        return [await ask(question=asked, context=given) for asked, given in zip(questions, contexts, strict=True)]

    one, many, each, uneven, blank, none = asked_of(service, scene, "/answer")
    assert [len(ranked) for ranked in each.json()["results"]] == [1, 1]
    for found in (many, each):
        assert found.json()["results"][0][0] == pytest.approx(one.json()["results"][0])
    assert (uneven.status_code, uneven.json()["error"]["param"]) == (400, "context")
    assert "found 1 for 2 questions" in uneven.text
    assert (blank.status_code, blank.json()["error"]["param"]) == (400, "question.1")
    assert (none.status_code, none.json()["error"]["param"]) == (400, "question")
