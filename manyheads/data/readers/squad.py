"""Reader of data sets for question answering. Faults are reported with the question or the line.

`.json` in the format of SQuAD 1.1 and 2.0 (Rajpurkar 2016, 2018):
    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 34}], "is_impossible": false}]}]}]}
A table with one question per row, in the format of the data set `squad` on the Hugging Face Hub (.jsonl, .parquet):
    {"id": ..., "title": ..., "context": ..., "question": ..., "answers": {"text": [...], "answer_start": [34]}}
In .csv and .tsv, the columns `answer` and `answer_start` contain one answer. `id` and `title` are optional.

`answer_start` is a character offset in the context. An unanswerable question has no answers; in `.json` it must also
have `is_impossible`: true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from manyheads.data.readers.compressed import format_suffix, open_decompressed
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import BadRow, Cells, Row, character_fault, parse_rows, text_fault
from manyheads.data.readers.tables import TABLES, is_json_array, is_table, table
from manyheads.errors import UserError
from manyheads.files import parse_json

SUFFIXES = tuple(dict.fromkeys((".json", *TABLES)))
_SHAPE = 'expected {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [...]}]}]}'
_COLUMNS = ("id", "title", "context", "question", "answers", "answer", "answer_start")


class Answer(NamedTuple):
    """Answer to a question: its text, and the character offset `start` in the context at which it begins."""

    text: str
    start: int


class Question(NamedTuple):
    """Question with its context and its reference answers. An unanswerable question has no answers."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    article: str


@dataclass(frozen=True, repr=False)
class Questions(Dataset):
    """Data set of questions about texts."""

    columns: ClassVar[tuple[str, ...]] = ("items",)

    items: list[Question]

    @property
    def impossible(self) -> int:
        """Number of unanswerable questions in the data set."""
        return sum(not item.answers for item in self.items)

    @property
    def articles(self) -> int:
        return len({item.article for item in self.items})

    @property
    def texts(self) -> list[str]:
        """Each question with its context and answers as one string.

        The fingerprint of the data is computed from these strings.
        """
        return [json.dumps(item) for item in self.items]


def read_squad(file: str | Path | Rows, *, skip_bad_lines: bool = False) -> Questions:
    """Read the questions of one file.

    skip_bad_lines  True: leave out and count faulty questions

    Raises FileNotFoundError, or a one-line UserError that names the file, the question or line, and a remedy.
    """
    if not isinstance(file, Rows) and not (file := Path(file)).is_file():
        raise FileNotFoundError(f"{file}: no such file; give a JSON file in the format of SQuAD, or a table")
    ids: set[str] = set()

    def item(row: Row[Cells]) -> tuple[Question]:
        question = _question(row)
        if question.id in ids:
            raise BadRow("the id is not unique", "give each question a unique id")
        ids.add(question.id)
        return (question,)

    entries: Iterator[Row[Cells]]
    if isinstance(file, Path) and (not is_table(file) or (format_suffix(file) == ".json" and not is_json_array(file))):
        entries = _entries(file, _json(file))
    else:
        entries = table(file, columns=_COLUMNS)
    return Questions.collect(
        parse_rows(entries, item), file, "no usable question found", _SHAPE, skip=skip_bad_lines, unit="questions"
    )


def _json(file: Path) -> object:
    try:
        with open_decompressed(file) as content:
            return parse_json(content.read())
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: invalid UTF-8 at byte {error.start:,}; save the file as UTF-8") from None
    except ValueError as error:
        raise UserError(f"{file}: invalid JSON ({error}); {_SHAPE}") from None


def _entries(file: Path, content: object) -> Iterator[Row[Cells]]:
    """Yield every question of a SQuAD file as a table row. Raises UserError if the file has another structure."""
    for a, article in enumerate(_list(file, content, "data", "the file"), 1):
        paragraphs = _list(file, article, "paragraphs", f"article {a}")
        contexts = [p.get("context") if isinstance(p, dict) else None for p in paragraphs]
        # Questions with the same title are held out together for validation.
        named = article.get("title") if isinstance(article, dict) else None
        title = named or next((c for c in contexts if isinstance(c, str)), "")
        for p, (paragraph, context) in enumerate(zip(paragraphs, contexts, strict=True), 1):
            where = f"article {a}, paragraph {p}"
            if not isinstance(context, str):
                raise UserError(f"{file}: {where}: expected text under 'context'; {_SHAPE}")
            for q, entry in enumerate(_list(file, paragraph, "qas", where), 1):
                if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
                    raise UserError(f"{file}: {where}, question {q}: expected text under 'question'; {_SHAPE}")
                fault = ("", "")
                if entry.get("is_impossible") and entry.get("answers"):
                    fault = "is_impossible is true, but the question has answers", "remove one of them"
                elif not entry.get("is_impossible") and not entry.get("answers"):
                    fault = "no answers", "give an answer, or set is_impossible: true"
                name, answers = entry.get("id", f"{a}.{p}.{q}"), entry.get("answers")
                cells = {
                    "id": name, "title": title, "context": context, "question": entry["question"], "answers": answers
                }  # fmt: skip
                yield Row(file, 0, cells, *fault, f"question {name}")


def _list(file: Path, holder: object, key: str, where: str) -> list[object]:
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise UserError(f"{file}: {where}: expected a list under {key!r}; {_SHAPE}")
    return holder[key]


def _question(row: Row[Cells]) -> Question:
    cells = row.cells
    question, context = cells.get("question"), cells.get("context")
    title = str(cells.get("title") or context)
    fault = (
        text_fault(question, "question") or text_fault(context, "context") or character_fault(title, "the title")
    )  # fmt: skip
    if fault:
        raise BadRow(*fault)
    answers = _answers(cells)
    for answer in answers:
        _check_answer(answer, str(context))
    return Question(str(cells.get("id") or row.number), str(question), str(context), tuple(answers), title)


def _answers(cells: Cells) -> list[Answer]:
    """Return the answers to a question. Raises BadRow if the text or the offset of an answer is missing."""
    texts: object
    starts: object
    answers = cells.get("answers") or []
    if "answer" in cells:
        start = str(cells.get("answer_start", "")).strip()
        number = int(start) if re.fullmatch(r"-?\d{1,18}", start) else None
        texts, starts = ([cells["answer"]], [number]) if cells["answer"] else ([], [])
    elif isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
    else:
        given = answers if isinstance(answers, list) else [None]
        texts, starts = ([a.get(n) if isinstance(a, dict) else None for a in given] for n in ("text", "answer_start"))
    if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
        pairs = zip(texts, starts, strict=True)
        found = [Answer(text, start) for text, start in pairs if isinstance(text, str) and type(start) is int]
        if len(found) == len(texts):
            return found
    raise BadRow("answers without text or answer_start", "give both")


def _check_answer(answer: Answer, context: str) -> None:
    text, start = answer
    if not text.strip():
        raise BadRow("found a blank answer", "fill it in")
    if start < 0 or context[start : start + len(text)] != text:
        at = context.find(text)
        hint = f"the answer begins at {at}" if at >= 0 else "the context does not contain the answer"
        found = context[max(0, start) : max(0, start + len(text))]
        raise BadRow(
            f"the answer's offset does not match its context: expected {text!r} at {start}, found {found!r}",
            f"correct answer_start ({hint})",
        )
