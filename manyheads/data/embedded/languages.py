"""The embedded corpus of text classification: which of 60 languages is a phrase in? Needs no download.

Dates, times, spans, amounts, units, lists and combinations of names from the Unicode CLDR data inside Babel, as in
`phrases.py`, in two languages at a time. A combination that is held out for validation or test occurs nowhere in
training, not even inside a longer phrase; a date or a time may, within a moment or an interval. What tells nothing
(numbers and codes alone), or is the same in two of the languages, is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from random import Random

from manyheads.data.embedded.language_codes import LANGUAGES
from manyheads.data.embedded.phrases import Writer, locale_of, split_of
from manyheads.data.readers.labelled import Labelled
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError

FRAGMENTS = 500  # of each kind that two languages are written in


def cldr_languages(*, seed: int = 0, size: int = 48_000) -> SplitData[Labelled]:
    """About `size` training phrases, a twelfth as many each for validation and test, labelled by language code.

    No phrase occurs twice. Deterministic for a seed and a Babel version.
    """
    counts = {"train": size // 60, "validation": size // 720, "test": size // 720}
    if counts["test"] < 1:
        raise UserError(f"size={size}: expected at least 720 phrases, or some languages are not tested")
    spoken: defaultdict[str, set[str]] = defaultdict(set)  # the languages of a phrase
    drawn: dict[str, list[tuple[str, str]]] = {split: [] for split in counts}
    for first, second in zip(LANGUAGES[::2], LANGUAGES[1::2], strict=True):
        writer = Writer(locale_of(first), locale_of(second), Random(f"{seed} {first}"))
        kinds = [list(islice(kind, FRAGMENTS)) for kind in writer.kinds().values()]
        shown = {f.target for kind in kinds for f in kind if split_of(f.source) == "train"}
        for split, count in counts.items():
            # two sources can have one target, so what is held out must be new in both languages
            pools = [
                [f for f in kind if split_of(f.source) == split and (split == "train" or f.target not in shown)]
                for kind in kinds
            ]
            for fragment in writer.phrases(pools, count, []):
                for phrase, language in ((fragment.source, first), (fragment.target, second)):
                    spoken[phrase].add(language)
                    drawn[split].append((phrase, language))
    seen: set[str] = set()
    splits = []
    for split, phrases in drawn.items():
        kept = [(p, n) for p, n in dict(phrases).items() if _tells(p) and len(spoken[p]) == 1 and p not in seen]
        seen.update(phrase for phrase, _ in kept)
        Random(f"{seed} {split}").shuffle(kept)
        splits.append(Labelled([phrase for phrase, _ in kept], [language for _, language in kept]))
    train, validation, test = splits
    return SplitData(train, validation, test)


def _tells(phrase: str) -> bool:
    """Whether there is a word in it, not only numbers and codes such as "NZ$ 5" and "USD 12"."""
    return any(c.isalpha() and c > "\u024f" for c in phrase) or any(
        len(letters) > 3 and not letters.isupper() for letters in re.findall(r"[^\W\d_]+", phrase)
    )
