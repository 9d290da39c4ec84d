"""Questions about texts, in the JSON of SQuAD 1.1 and 2.0 (Rajpurkar 2016, 2018), every fault named by question.

{"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
    {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 34}], "is_impossible": false}]}]}]}

`answer_start` counts characters of the context. A question without an answer has `is_impossible` and no answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.splits import SURROGATE, SplitData, Splits, find_files, half_character, read_files

SUFFIXES = (".json",)
_SHAPE = 'expected {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [...]}]}]}'


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


def read_squad(file: str | Path, *, skip_bad_lines: bool = False) -> Questions:
    """Reads one file. Raises a one-line ValueError that names file, question and remedy, or FileNotFoundError;
    `skip_bad_lines` leaves faulty questions out and counts them."""
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give a JSON file as SQuAD's")
    try:
        content = json.loads(file.read_bytes())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: invalid UTF-8 at byte {error.start:,}; write it again as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON ({error}); {_SHAPE}") from None
    items: list[Question] = []
    skips: Counter[str] = Counter()
    seen: set[str] = set()
    for item, fault in _questions(file, content):
        if not fault and item.id in seen:
            fault = "its id occurs twice; give each question one of its own"
        seen.add(item.id)
        if not fault:
            items.append(item)
        elif skip_bad_lines:
            skips[f"{file}: {fault.split('; ')[0].split(': ')[0]}"] += 1
        else:
            raise ValueError(f"{file}: question {item.id}: {fault}, or skip such questions with --skip-bad-lines")
    if not items:
        raise ValueError(f"{file}: no usable question ({sum(skips.values()):,} skipped); {_SHAPE}")
    return Questions(items, file, dict(skips))


def read_splits(
    data: str | Path, *, validation: str | None = None, test: str | None = None, skip_bad_lines: bool = False
) -> SplitData[Questions]:
    """The splits of a directory, or one file as the training data; `validation` and `test` win over those found.

    Without validation data, 5% of the training articles are held out by a hash of their titles.
    """
    return read_files(
        data, SUFFIXES, partial(read_squad, skip_bad_lines=skip_bad_lines),
        lambda questions: [item.article for item in questions.items], what="article", validation=validation, test=test,
    )  # fmt: skip


def find_splits(data: str | Path, *, validation: str | None = None, test: str | None = None) -> Splits:
    """The files behind `data`: those of a directory's splits, or one file as the training data."""
    return find_files(data, SUFFIXES, validation=validation, test=test)


def _questions(file: Path, content: Any) -> Iterator[tuple[Question, str]]:
    """Every question with what is wrong with it, if anything. Raises ValueError where the file has another shape."""
    for a, article in enumerate(_list(file, content, "data", "the file")):
        where = f"article {a + 1}"
        paragraphs = _list(file, article, "paragraphs", where)
        contexts = [p.get("context") if isinstance(p, dict) else None for p in paragraphs]
        title = article.get("title") or next((c for c in contexts if isinstance(c, str)), "")  # to hold out by
        for p, (paragraph, context) in enumerate(zip(paragraphs, contexts, strict=True)):
            where = f"article {a + 1}, paragraph {p + 1}"
            if not isinstance(context, str):
                raise ValueError(f"{file}: {where}: no text under 'context'; {_SHAPE}")
            for q, found in enumerate(_list(file, paragraph, "qas", where)):
                if not isinstance(found, dict) or not isinstance(found.get("question"), str):
                    raise ValueError(f"{file}: {where}, question {q + 1}: no text under 'question'; {_SHAPE}")
                name = str(found.get("id", f"{a + 1}.{p + 1}.{q + 1}"))
                answers, fault = _answers(found, context)
                if not fault and not found["question"].strip():
                    fault = "the question is blank; fill it in"
                for what, text in (("question", found["question"]), ("context", context), ("title", str(title))):
                    if not fault and half_character(text):
                        fault = f"the {what} {SURROGATE[0]}; {SURROGATE[1]}"
                yield Question(name, found["question"], context, answers, str(title)), fault


def _list(file: Path, holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise ValueError(f"{file}: {where}: no list under {key!r}; {_SHAPE}")
    return holder[key]


def _answers(question: dict[str, Any], context: str) -> tuple[tuple[Answer, ...], str]:
    """The answers, and what is wrong with them."""
    given, impossible = question.get("answers") or [], bool(question.get("is_impossible"))
    if not isinstance(given, list) or any(
        not isinstance(a, dict) or not isinstance(a.get("text"), str) or type(a.get("answer_start")) is not int
        for a in given
    ):
        return (), "answers without text and answer_start; give both"
    if impossible and given:
        return (), "it is_impossible but has answers; remove the one or the other"
    if not impossible and not given:
        return (), "no answers; give one, or say is_impossible: true"
    answers = tuple(Answer(a["text"], a["answer_start"]) for a in given)
    for answer in answers:
        start, end = answer.start, answer.start + len(answer.text)
        if not answer.text.strip():
            return (), "a blank answer; fill it in"
        if start < 0 or context[start:end] != answer.text:
            at = context.find(answer.text)
            remedy = f"the answer stands at {at}" if at >= 0 else "the context does not have the answer"
            there = context[max(0, start) : max(0, end)]
            return (), (
                f"the answer's offset does not match its context: {answer.text!r} expected at {start}, "
                f"found {there!r}; correct answer_start ({remedy})"
            )
    return answers, ""
