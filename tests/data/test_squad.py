"""SQuAD's JSON, both versions; every fault named by file and question; splits by article."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyheads.data.squad import Answer, read_splits, read_squad

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


def test_both_versions(tmp_path: Path) -> None:
    at = CONTEXT.index("Babbage")
    null = {"id": "c", "question": "Who sang?", "answers": [], "is_impossible": True, "plausible_answers": [{}]}
    read = read_squad(
        write(tmp_path / "a.json", question("a"), question("b", "Babbage", at, is_impossible=False), null)
    )
    assert [item.answers for item in read.items] == [(Answer("Ada", 0),), (Answer("Babbage", at),), ()]
    assert read.items[1].context[at:].startswith("Babbage")  # characters, not bytes
    assert (len(read), read.impossible, read.articles) == (3, 1, 1)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (question("x", "1815", 13), "the answer's offset does not match its context: '1815' expected at 13, "
         "found '(181'; correct answer_start (the answer stands at 14)"),
        (question("x", "Byron", 3), "expected at 3, found ' Love'; correct answer_start (the context does not have"),
        (question("x", "Ada", -3), "does not match"),
        (question("x", "Ada", 10_000), "found ''"),
        (question("x", " ", 3), "a blank answer"),
        ({"id": "x", "question": "?", "answers": []}, "no answers; give one, or say is_impossible: true"),
        (question("x", is_impossible=True), "it is_impossible but has answers"),
        ({"id": "x", "question": "?", "answers": [{"text": "Ada"}]}, "answers without text and answer_start"),
        ({"id": "x", "question": " ", "answers": [{"text": "Ada", "answer_start": 0}]}, "the question is blank"),
        (question("good"), "its id occurs twice"),
        ({**question("x"), "question": "Who\ud800?"}, "the question has half a character (a lone surrogate); write it"),
    ],
)  # fmt: skip
def test_faults_name_the_question_or_are_skipped(tmp_path: Path, faulty: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "a.json", question("good"), faulty)
    with pytest.raises(ValueError) as told:
        read_squad(file)
    assert str(told.value).startswith(f"{file}: question {faulty['id']}.0: ")
    assert message in str(told.value)
    assert "\n" not in str(told.value)
    read = read_squad(file, skip_bad_lines=True)
    assert len(read) == 1
    assert list(read.skips.values()) == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', "not JSON"),
        (b'{"data": [], "x": "\xff"}', "invalid UTF-8 at byte 19"),
        (b"[]", "the file: no list under 'data'"),
        (b'{"data": []}', "no usable question"),
        (b'{"data": [{"title": "a"}]}', "article 1: no list under 'paragraphs'"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "article 1, paragraph 1: no text under 'context'"),
        (b'{"data": [{"paragraphs": [{"context": "a"}]}]}', "article 1, paragraph 1: no list under 'qas'"),
        (
            b'{"data": [{"paragraphs": [{"context": "a", "qas": [{}]}]}]}',
            "paragraph 1, question 1: no text under 'question'",
        ),
    ],
)
def test_files_of_another_shape(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(ValueError) as told:
        read_squad(file)
    assert str(told.value).startswith(f"{file}: ")
    assert message in str(told.value)


def test_validation_is_held_out_by_article(tmp_path: Path) -> None:
    file = write(tmp_path / "train-v1.1.json", *(question(f"q{i}") for i in range(3)), articles=60)
    train, validation, test, *_ = read_splits(file)
    assert test is None
    assert len(train) + len(validation) == 180
    assert 1 <= validation.articles <= 12
    assert not {item.article for item in train.items} & {item.article for item in validation.items}
    write(tmp_path / "dev-v1.1.json", question("d"))
    write(tmp_path / "test.json", question("t"))
    assert [len(s) for s in read_splits(tmp_path)[:3] if s] == [180, 1, 1]
    with pytest.raises(ValueError, match="one distinct article"):
        read_splits(write(tmp_path / "b.json", question("a")))
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_splits(tmp_path / "c.json")


def test_xquad(real_data: Callable[[str], Path]) -> None:
    train, validation, test, *_ = read_splits(real_data("xquad"))
    assert test is not None
    assert (train.articles + validation.articles, test.articles) == (36, 12)
    assert len(train) + len(validation) + len(test) == 1190
