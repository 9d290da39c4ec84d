"""Questions about texts, read strictly, with every fault named by question or line.

`.json` as SQuAD 1.1 and 2.0 have it (Rajpurkar 2016, 2018):
    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 34}], "is_impossible": false}]}]}]}
A table, a question a row, as the data set `squad` of the Hugging Face Hub has it (.jsonl, .parquet):
    {"id": ..., "title": ..., "context": ..., "question": ..., "answers": {"text": [...], "answer_start": [34]}}
In .csv and .tsv, columns `answer` and `answer_start` hold one answer. `id` and `title` may be missing.

`answer_start` counts characters of the context. A question without an answer has none; in `.json` it says
`is_impossible`, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.rows import TABLES, Fault, Row, character_fault, sift, table, text_fault

SUFFIXES = (".json", *TABLES)
_SHAPE = 'expected {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [...]}]}]}'
_COLUMNS = ("id", "title", "context", "question", "answers", "answer", "answer_start")


class Answer(NamedTuple):
    """Characters of the context from `start` on."""

    text: str
    start: int


class Question(NamedTuple):
    """A question, its context, and the answers that people gave; none where the context has none."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    article: str


@dataclass(frozen=True)
class Questions:
    """Questions of one file, or of a part of it. `skips` counts those left out, by file and reason."""

    items: list[Question]
    file: Path | None = None
    skips: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Questions({len(self):,} questions, {self.impossible:,} without an answer, file={str(self.file)!r})"

    @property
    def impossible(self) -> int:
        """How many have no answer."""
        return sum(not item.answers for item in self.items)

    @property
    def articles(self) -> int:
        return len({item.article for item in self.items})

    @property
    def texts(self) -> list[str]:
        """Every question with its context and answers as one text, which tells it apart from all others."""
        return [json.dumps(item) for item in self.items]

    def subset(self, rows: Sequence[int]) -> Questions:
        return replace(self, items=[self.items[i] for i in rows])


def read_squad(file: str | Path, *, skip_bad_lines: bool = False, limit: int | None = None) -> Questions:
    """Reads one file; `limit` is how many questions at most.

    Raises a one-line ValueError that names file, question or line, and remedy, or FileNotFoundError; `skip_bad_lines`
    leaves faulty questions out and counts them.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give a JSON file as SQuAD's, or a table")
    rows = _rows(file) if file.suffix in TABLES else _questions(file, _json(file))
    skips: Counter[str] = Counter()
    kept = sift(_once(rows), skips, skip=skip_bad_lines, unit="questions")
    items = [row.cells for row in islice(kept, limit)]
    if not items:
        raise ValueError(f"{file}: no usable question ({sum(skips.values()):,} skipped); {_SHAPE}")
    return Questions(items, file, dict(skips))


def _once(rows: Iterator[Row[Question]]) -> Iterator[Row[Question]]:
    ids: set[str] = set()
    for row in rows:
        if not row.fault and row.cells.id in ids:
            row = row._replace(fault="its id occurs twice", remedy="give each question one of its own")
        ids.add(row.cells.id)
        yield row


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: invalid UTF-8 at byte {error.start:,}; write it again as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON ({error}); {_SHAPE}") from None


def _questions(file: Path, content: Any) -> Iterator[Row[Question]]:
    """Every question of SQuAD's JSON. Raises ValueError where the file has another shape."""
    for a, article in enumerate(_list(file, content, "data", "the file"), 1):
        paragraphs = _list(file, article, "paragraphs", f"article {a}")
        contexts = [p.get("context") if isinstance(p, dict) else None for p in paragraphs]
        title = article.get("title") or next((c for c in contexts if isinstance(c, str)), "")  # to hold out by
        for p, (paragraph, context) in enumerate(zip(paragraphs, contexts, strict=True), 1):
            where = f"article {a}, paragraph {p}"
            if not isinstance(context, str):
                raise ValueError(f"{file}: {where}: no text under 'context'; {_SHAPE}")
            for q, entry in enumerate(_list(file, paragraph, "qas", where), 1):
                if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
                    raise ValueError(f"{file}: {where}, question {q}: no text under 'question'; {_SHAPE}")
                name, answers = str(entry.get("id", f"{a}.{p}.{q}")), entry.get("answers") or []
                fault: Fault | None = None
                if entry.get("is_impossible") and answers:
                    fault = "it is_impossible but has answers", "remove the one or the other"
                elif not entry.get("is_impossible") and not answers:
                    fault = "no answers", "give one, or say is_impossible: true"
                row = _checked(file, 0, name, str(title), context, entry["question"], answers, fault)
                yield row._replace(name=f"question {name}")


def _list(file: Path, holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise ValueError(f"{file}: {where}: no list under {key!r}; {_SHAPE}")
    return holder[key]


def _rows(file: Path) -> Iterator[Row[Question]]:
    """Every question of a table."""
    for row in table(file, columns=_COLUMNS):
        cells = row.cells
        answers: Any = cells.get("answers") or []
        fault = (row.fault, row.remedy) if row.fault else None
        if "answer" in cells:
            start = str(cells.get("answer_start", "")).strip()
            number = int(start) if start.lstrip("-").isdecimal() else None
            answers = [{"text": cells["answer"], "answer_start": number}] if cells["answer"] else []
        elif isinstance(answers, dict):
            texts, starts = answers.get("text"), answers.get("answer_start")
            answers = None
            if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
                answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        context, name = cells.get("context"), str(cells.get("id") or row.number)
        title = str(cells.get("title") or context)
        yield _checked(file, row.number, name, title, context, cells.get("question"), answers, fault)


def _checked(
    file: Path, number: int, name: str, title: str, context: Any, question: Any, answers: Any, fault: Fault | None
) -> Row[Question]:
    """The question, or what is wrong with it."""
    fault = (
        fault or text_fault(question, "question") or text_fault(context, "context")
        or character_fault(title, "the title") or _answers_fault(answers, context)
    )  # fmt: skip
    if fault:
        return Row(file, number, Question(name, "", "", (), ""), *fault)
    given = tuple(Answer(answer["text"], answer["answer_start"]) for answer in answers)
    return Row(file, number, Question(name, question, context, given, title))


def _answers_fault(answers: Any, context: str) -> Fault | None:
    if not isinstance(answers, list) or any(
        not isinstance(a, dict) or not isinstance(a.get("text"), str) or type(a.get("answer_start")) is not int
        for a in answers
    ):
        return "answers without text and answer_start", "give both"
    for answer in answers:
        text, start = answer["text"], answer["answer_start"]
        if not text.strip():
            return "a blank answer", "fill it in"
        if start < 0 or context[start : start + len(text)] != text:
            at = context.find(text)
            remedy = f"the answer stands at {at}" if at >= 0 else "the context does not have the answer"
            there = context[max(0, start) : max(0, start + len(text))]
            return (
                f"the answer's offset does not match its context: {text!r} expected at {start}, found {there!r}",
                f"correct answer_start ({remedy})",
            )
    return None
