"""The embedded corpus for tagging: phrases of Unicode CLDR fragments, with IOB2 tags of what each part is.

The fragments are those of `phrases.py`, in one locale: dates, times, durations, sums of money, quantities, numbers,
percents, places and languages. A phrase is one of them or several, put together by the locale's own lists, its pattern
of date and time, and punctuation. What is tested are combinations: a date x pattern or an amount x unit that is held
out occurs in no training phrase; names cannot be inferred, so a phrase that is made of names is held out as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from babel import Locale, dates, lists

from manyheads.data.embedded.phrases import PLAIN_SPACES, Fragment, Writer, locale_of, split_of
from manyheads.data.readers.conll import OUTSIDE, Tagged, words_of
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError

NAMES = ("PLACE", "LANGUAGE")
_JOINTS = ("{0}: {1}", "{0} ({1})", "{0}; {1}")  # no dash: "May 5 – 7" is one date


class _Part(NamedTuple):
    """A fragment of a phrase, or what stands between two ("" is its kind)."""

    text: str
    kind: str
    needs: tuple[str, ...] = ()  # patterns and names that training must have shown


class _Template(NamedTuple):
    """A pattern such as "{1} at {0}", and the kinds of what is put in; None: any."""

    pattern: str
    kinds: tuple[str | None, ...]


def cldr_tagged(locale: str = "en", *, seed: int = 0, size: int = 8000) -> SplitData[Tagged]:
    """`size` tagged phrases for training, size // 16 each for validation and test, no phrase twice.

    Deterministic for a seed and a Babel version. Raises UserError for an unknown locale, and for one that puts no
    spaces between words.
    """
    if size < 1000:
        raise UserError(f"size={size}: expected at least 1,000 phrases, or names go untrained")
    where, random = locale_of(locale), Random(seed)
    parts = _parts(Writer(where, where, random))
    templates = list(_templates(where))
    seen: set[str] = set()
    shown: set[str] = set()
    corpora = []
    for split, count in (("train", size), ("validation", size // 16), ("test", size // 16)):
        training = split == "train"
        usable = [
            p
            for p in parts
            if p.kind in NAMES or (split_of(p.text) == split and (training or shown.issuperset(p.needs)))
        ]
        pools: dict[str, list[_Part]] = {}
        for part in usable:
            pools.setdefault(part.kind, []).append(part)
        phrases = [[part] for part in parts if training and part.kind in NAMES]
        phrases += [_phrase(random, pools, templates) for _ in range(3 * count)]
        words: list[list[str]] = []
        tags: list[list[str]] = []
        for phrase in phrases:
            text = "".join(part.text for part in phrase)
            names_only = len(phrase) > 1 and all(part.kind in (*NAMES, "") for part in phrase)
            if len(words) == count or text in seen or (names_only and split_of(text) != split):
                continue
            if (sentence := _tagged(text, phrase)) is not None:
                seen.add(text)
                shown.update(need for part in phrase for need in part.needs if training)
                words.append(sentence[0])
                tags.append(sentence[1])
        if len(words) < count:
            raise UserError(f"{locale}: only {len(words):,} of {count:,} phrases can be tagged word by word: expected "
                             "a locale that puts spaces between words, or a smaller size")  # fmt: skip
        order = random.sample(range(count), count)
        corpora.append(Tagged(words, tags).subset(order))
    train, validation, test = corpora
    return SplitData(train, validation, test)


def _parts(writer: Writer) -> list[_Part]:
    """Every fragment once, under the first kind that it has: "May" is a month before it is anything else."""
    parts = {f.source: _Part(f.source, "PLACE", f.needs) for f in writer.territories}
    parts |= {f.source: _Part(f.source, "LANGUAGE", f.needs) for f in writer.languages}
    kinds = writer.kinds()
    for kind in ("dates", "times", "spans", "intervals", "numbers", "sums", "sums spelt out", "units",
                 "units with decimals"):  # fmt: skip
        for fragment in kinds[kind]:
            parts.setdefault(fragment.source, _Part(fragment.source, _kind(kind, fragment), fragment.needs))
    return list(parts.values())


def _kind(kind: str, fragment: Fragment) -> str:
    need = fragment.needs[0]
    if kind in ("dates", "intervals"):
        return "TIME" if need == "interval Hm" else "DATE"
    if kind == "numbers":
        return "PERCENT" if need == "percent" else "NUMBER"
    if kind.startswith("units"):
        return "DURATION" if need.startswith("unit duration") else "QUANTITY"
    return {"times": "TIME", "spans": "DURATION"}.get(kind, "MONEY")


def _templates(locale: Locale) -> Iterator[_Template]:
    yield from (_Template("{0}", (None,)) for _ in range(4))
    yield from (_Template(joint, (None, None)) for joint in _JOINTS)
    yield _Template("{0} ({1})", ("LANGUAGE", "PLACE"))
    for form in ("full", "short"):
        pattern = str(dates.get_datetime_format(form, locale=locale)).replace("'", "")
        yield _Template(pattern.translate(PLAIN_SPACES), ("TIME", "DATE"))
    for style in ("standard", "or"):
        for count in (2, 3):
            pattern = lists.format_list([f"{{{i}}}" for i in range(count)], style, locale)
            for kind in (*NAMES, None):
                yield _Template(pattern.translate(PLAIN_SPACES), (kind,) * count)


def _phrase(random: Random, pools: dict[str, list[_Part]], templates: list[_Template]) -> list[_Part]:
    """Parts whose texts, one after another, are a phrase: of one template or of two or three in a row."""
    kinds = sorted(pools)

    def filled() -> list[_Part]:
        template = random.choice(templates)
        return _put(template.pattern, [[random.choice(pools[kind or random.choice(kinds)])] for kind in template.kinds])

    phrase = filled()
    while random.random() < 0.35:
        phrase = _put(random.choice(_JOINTS), [phrase, filled()])
    return phrase


def _put(pattern: str, filling: list[list[_Part]]) -> list[_Part]:
    pieces = re.split(r"\{(\d)\}", pattern)  # text, number, text, number, text
    parts: list[_Part] = []
    for i, piece in enumerate(pieces):
        parts += filling[int(piece)] if i % 2 else [_Part(piece, "")] if piece else []
    return parts


def _tagged(text: str, phrase: list[_Part]) -> tuple[list[str], list[str]] | None:
    """Words and tags; None where a word belongs to two parts, as where there are no spaces between words."""
    kinds: list[tuple[str, int]] = []  # of every character: its part's kind and number
    for number, part in enumerate(phrase):
        kinds += [(part.kind, number)] * len(part.text)
    words, tags, before = [], [], -1
    for start, end in words_of(text):
        if len(set(kinds[start:end])) > 1:
            return None
        kind, number = kinds[start]
        tags.append(f"{'I' if number == before else 'B'}-{kind}" if kind else OUTSIDE)
        words.append(text[start:end])
        before = number
    return words, tags
