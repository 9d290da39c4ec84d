"""Lists of dates: each document rewrites dates by one hidden template, such as `5 March 2031 -> 31-MAR-05`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from itertools import permutations, product
from pathlib import Path
from random import Random
from statistics import mean

from manyheads.tasks.language.predictor import LanguageModel
from manyheads.tasks.language.shots import ARROW

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
FIRST, LAST = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
LINES = 10  # number of lines in a document
TEST_DAY = 10  # a date whose ordinal is divisible by this number occurs only in tests

Template = tuple[tuple[str, ...], str, str, str]  # order of day, month and year; separator; month style; year style


def templates() -> tuple[list[Template], list[Template]]:
    """Return the templates of the training documents, and those that occur only in tests (an eighth)."""
    every = list(product(permutations("dmy"), (".", "-", "/", " "), ("number", "Mar", "MAR"), ("2031", "31")))
    Random(0).shuffle(every)
    held_out = len(every) // 8
    return every[held_out:], every[:held_out]


def rewritten(day: date, template: Template) -> str:
    """Return a date in the form of a template."""
    order, separator, month, year = template
    name = MONTHS[day.month - 1][:3]
    parts = {
        "d": f"{day.day:02}",
        "m": {"number": f"{day.month:02}", "Mar": name, "MAR": name.upper()}[month],
        "y": f"{day.year}"[-len(year) :],
    }
    return separator.join(parts[part] for part in order)


def written(day: date) -> str:
    """Return the input form of a date, such as 5 March 2031."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def write(folder: Path, *, documents: int = 12_000, tables: int = 6, rows: int = 40) -> None:
    """Write documents.jsonl for training, and tables of dates for tests: seen-N.tsv and unseen-N.tsv.

    Each table has one template, which occurs in training (seen) or does not (unseen). The dates of all tables are new.
    """
    random, (known, new) = Random(1), templates()

    def days(count: int, allowed: Callable[[int], bool]) -> list[date]:
        drawn: set[int] = set()
        while len(drawn) < count:
            number = random.randint(FIRST, LAST)
            drawn |= {number} if allowed(number) else set()
        return [date.fromordinal(number) for number in random.sample(sorted(drawn), count)]

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "documents.jsonl").open("w") as file:
        for _ in range(documents):
            template = random.choice(known)
            lines = (
                f"{written(day)}{ARROW} {rewritten(day, template)}\n"
                for day in days(LINES, lambda n: n % TEST_DAY != 0)
            )
            file.write(json.dumps({"text": "".join(lines)}) + "\n")
    for kind, group in (("seen", known), ("unseen", new)):
        for number, template in enumerate(random.sample(group, tables), 1):
            table = [f"{written(day)}\t{rewritten(day, template)}\n" for day in days(rows, lambda n: n % TEST_DAY == 0)]
            (folder / f"{kind}-{number}.tsv").write_text("input\toutput\n" + "".join(table))


def scores(model: LanguageModel, folder: Path, shots: int) -> dict[str, float]:
    """Return the mean exact match over the tables of each kind, seen and unseen, after `shots` examples."""
    return {
        kind: mean(
            model.outcome(path, shots=shots).metrics["exact_match"]["value"]
            for path in sorted(folder.glob(f"{kind}-*.tsv"))
        )
        for kind in ("seen", "unseen")
    }
