"""SQuAD files of both versions: faults reported by file and question, splits by article."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.squad import Answer, Questions, read_squad
from manyheads.data.sources.corpora import QuestionSource


def read_splits(data: Path) -> SplitData[Questions]:
    return QuestionSource(data=str(data)).read()


CONTEXT = "Ada Lovelace (1815 – 1852) wrote the first program. 👩‍💻 She worked with Babbage."


def question(name: str, text: str = "Ada", start: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": name, "question": f"Who {name}?", "answers": [{"text": text, "answer_start": start}], **more}


def write(path: Path, *questions: Any, articles: int = 1) -> Path:
    data = [
        {
            "title": f"T{n}",
            "paragraphs": [{"context": CONTEXT, "qas": [{**q, "id": f"{q['id']}.{n}"} for q in questions]}],
        }
        for n in range(articles)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return path


def test_both_layouts_are_read(tmp_path: Path) -> None:
    at = CONTEXT.index("Babbage")
    null = {"id": "c", "question": "Who sang?", "answers": [], "is_impossible": True, "plausible_answers": [{}]}
    questions = read_squad(
        write(tmp_path / "a.json", question("a"), question("b", "Babbage", at, is_impossible=False), null)
    )
    assert [item.answers for item in questions.items] == [(Answer("Ada", 0),), (Answer("Babbage", at),), ()]
    assert questions.items[1].context[at:].startswith("Babbage")  # characters, not bytes
    assert (len(questions), questions.impossible, questions.articles) == (3, 1, 1)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (question("x", "1815", 13), "the answer's offset does not match its context: expected '1815' at 13, "
         "found '(181'; correct answer_start (the answer begins at 14)"),
        (question("x", "Byron", 3), "at 3, found ' Love'; correct answer_start (the context does not contain"),
        (question("x", "Ada", -3), "does not match"),
        (question("x", "Ada", 10_000), "found ''"),
        (question("x", " ", 3), "found a blank answer"),
        ({"id": "x", "question": "?", "answers": []}, "no answers; give an answer, or set is_impossible: true"),
        (question("x", is_impossible=True), "is_impossible is true, but the question has answers"),
        ({"id": "x", "question": "?", "answers": [{"text": "Ada"}]}, "answers without text or answer_start"),
        ({"id": "x", "question": " ", "answers": [{"text": "Ada", "answer_start": 0}]}, "'question' is blank"),
        (question("good"), "the id is not unique"),
        ({**question("x"), "question": "Who\ud800?"}, "'question' contains half a character (a lone "
                                                      "surrogate); encode it"),
    ],
)  # fmt: skip
def test_faults_name_the_question_or_are_skipped(tmp_path: Path, faulty: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "a.json", question("good"), faulty)
    with pytest.raises(ValueError) as error:
        read_squad(file)
    assert str(error.value).startswith(f"{file}: question {faulty['id']}.0: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    questions = read_squad(file, skip_bad_lines=True)
    assert len(questions) == 1
    assert list(questions.skips.values()) == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', "invalid JSON"),
        (b'{"data": [], "x": "\xff"}', "invalid UTF-8 at byte 19"),
        (b"[]", "no usable question found"),
        (b'{"data": []}', "no usable question found"),
        (b'{"data": [{"title": "a"}]}', "article 1: expected a list under 'paragraphs'"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "article 1, paragraph 1: expected text under 'context'"),
        (b'{"data": [{"paragraphs": [{"context": "a"}]}]}', "article 1, paragraph 1: expected a list under 'qas'"),
        (
            b'{"data": [{"paragraphs": [{"context": "a", "qas": [{}]}]}]}',
            "paragraph 1, question 1: expected text under 'question'",
        ),
    ],
)
def test_mismatched_files_are_reported(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_squad(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


def as_table(folder: Path, suffix: str) -> Path:
    """A question with an answer, and one without."""
    at, file = CONTEXT.index("Babbage"), folder / f"a{suffix}"
    rows: list[dict[str, Any]] = [{"id": "1", "title": "T", "context": CONTEXT, "question": q} for q in ("a?", "b?")]
    if suffix in (".csv", ".tsv"):
        lines = [*({**row, "answer": "", "answer_start": ""} for row in rows)]
        lines[0] |= {"answer": "Babbage", "answer_start": at}
        lines[1] |= {"id": "2"}
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(lines[0]), delimiter="," if suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(lines)
        return file
    rows[0]["answers"] = {"text": ["Babbage"], "answer_start": [at]}
    rows[1] |= {"id": "2", "answers": {"text": [], "answer_start": []}}
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv"])
def test_a_table_has_one_question_per_row(tmp_path: Path, suffix: str) -> None:
    questions = read_squad(as_table(tmp_path, suffix))
    assert [(item.id, item.question, item.article) for item in questions.items] == [("1", "a?", "T"), ("2", "b?", "T")]
    assert [item.answers for item in questions.items] == [(Answer("Babbage", CONTEXT.index("Babbage")),), ()]
    assert questions.items[0].context == CONTEXT


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answers": {"text": ["Ada"], "answer_start": [3]}}, "the answer's offset does not match its context"),
        ({"answers": {"text": ["Ada"], "answer_start": []}}, "answers without text or answer_start; give both"),
        ({"answers": {"text": ["Ada"], "answer_start": ["0"]}}, "answers without text or answer_start"),
        ({"answers": 3}, "answers without text or answer_start"),
        ({"answer": "Ada", "answer_start": "9" * 5000}, "answers without text or answer_start"),
        ({"answer": "Ada", "answer_start": "--1"}, "answers without text or answer_start"),
        ({"context": None}, "expected text in 'context', found None"),
        ({"context": "x" * 1_000_001}, "'context' is longer than 1,000,000 characters"),
        ({"id": "good"}, "the id is not unique; give each question a unique id"),
    ],
)
def test_malformed_table_rows_are_reported(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"id": "good", "context": CONTEXT, "question": "?", "answers": {"text": ["Ada"], "answer_start": [0]}}
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (good, {**good, "id": "x", **row})))
    with pytest.raises(ValueError) as refusal:
        read_squad(file)
    assert str(refusal.value).startswith(f"{file}:2: {message}")
    assert len(read_squad(file, skip_bad_lines=True)) == 1


def test_validation_is_held_out_by_article(tmp_path: Path) -> None:
    file = write(tmp_path / "train-v1.1.json", *(question(f"q{i}") for i in range(3)), articles=60)
    train, validation, test, *_ = read_splits(file)
    assert test is None
    assert len(train) + len(validation) == 180
    assert len(validation) == 36, "a fifth of the questions"
    assert not {item.article for item in train.items} & {item.article for item in validation.items}
    write(tmp_path / "dev-v1.1.json", question("d"))
    write(tmp_path / "test.json", question("t"))
    assert [len(s) for s in read_splits(tmp_path)[:3] if s] == [180, 1, 1]
    with pytest.raises(ValueError, match="one distinct article"):
        read_splits(write(tmp_path / "b.json", question("a")))
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_splits(tmp_path / "c.json")


def test_xquad_is_read(real_data: Callable[[str], Path]) -> None:
    train, validation, test, *_ = read_splits(real_data("xquad"))
    assert test is not None
    assert (train.articles + validation.articles, test.articles) == (36, 12)
    assert len(train) + len(validation) + len(test) == 1190
