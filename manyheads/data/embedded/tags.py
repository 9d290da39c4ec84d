"""Built-in corpus for tagging: phrases generated from Unicode CLDR data, with IOB2 tags for the kind of each part.

The parts are the fragments of `phrases.py` in one locale: dates, times, durations, amounts of money, quantities,
numbers, percentages, places and languages. A phrase is one fragment, or several that are joined by the locale's list
pattern, by its pattern of date and time, or by punctuation. The test split contains new combinations: a held-out
combination (a date in a pattern, an amount with a unit) does not occur in training. Names cannot be inferred, so
phrases of names are held out as a whole.
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
_JOINTS = ("{0}: {1}", "{0} ({1})", "{0}; {1}")  # No pattern has a dash, because "May 5 – 7" would look like one date.


class _Part(NamedTuple):
    """Part of a phrase: a fragment such as a date, or the text between two fragments.

    kind   kind of the fragment, such as "date"; "" for the text between fragments
    """

    text: str
    kind: str
    needs: tuple[str, ...] = ()  # patterns and names of the phrase, which must also occur in training


class _Template(NamedTuple):
    """Pattern such as "{1} at {0}", with the kinds of fragments for its arguments; None allows any kind."""

    pattern: str
    kinds: tuple[str | None, ...]


def cldr_tagged(locale: str = "en", *, seed: int = 0, size: int = 8000) -> SplitData[Tagged]:
    """Generate `size` tagged phrases for training, and size // 16 each for validation and test.

    No phrase occurs twice. The result depends only on the seed and the version of Babel. Raises UserError for an
    unknown locale, and for a locale that writes words without spaces between them.
    """
    if size < 1000:
        raise UserError(f"size={size}: expected at least 1,000 phrases; with fewer, some names are not trained")
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
            raise UserError(f"{locale}: only {len(words):,} of {count:,} phrases can be tagged by word; use "
                             "a locale with spaces between words, or a smaller size")  # fmt: skip
        order = random.sample(range(count), count)
        corpora.append(Tagged(words, tags).subset(order))
    train, validation, test = corpora
    return SplitData(train, validation, test)


def _parts(writer: Writer) -> list[_Part]:
    """Return the fragments of all kinds without duplicates, each with exactly one kind.

    For example, "May" always counts as a month, even if another kind contains a fragment with the same text.
    """
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
    """Return the parts of a random phrase: one pattern with its arguments, or several joined by punctuation."""
    kinds = sorted(pools)

    def filled() -> list[_Part]:
        template = random.choice(templates)
        return _put(template.pattern, [[random.choice(pools[kind or random.choice(kinds)])] for kind in template.kinds])

    phrase = filled()
    while random.random() < 0.35:
        phrase = _put(random.choice(_JOINTS), [phrase, filled()])
    return phrase


def _put(pattern: str, filling: list[list[_Part]]) -> list[_Part]:
    pieces = re.split(r"\{(\d)\}", pattern)  # re.split returns texts and argument numbers in turn.
    parts: list[_Part] = []
    for i, piece in enumerate(pieces):
        parts += filling[int(piece)] if i % 2 else [_Part(piece, "")] if piece else []
    return parts


def _tagged(text: str, phrase: list[_Part]) -> tuple[list[str], list[str]] | None:
    """Return the words and tags of a phrase, or None if a word extends over two parts of the phrase.

    Words extend over several parts in locales that write without spaces between words.
    """
    kinds: list[tuple[str, int]] = []  # kind and index of the phrase part to which each character belongs
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
