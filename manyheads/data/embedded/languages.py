"""Built-in corpus for text classification: phrases in 60 languages, labeled with the language. It requires no download.

The phrases contain dates, times, time spans, amounts, units, lists and names. They are generated from the Unicode CLDR
data in the library Babel as in `phrases.py`, for two languages at a time. A phrase that is held out for validation or
test does not occur in training, not even inside a longer phrase. As an exception, a date or time may occur in training
inside a longer date with time, or inside an interval. Phrases without words (only numbers and codes), and phrases that
are equal in two languages, are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from random import Random

from manyheads.data.embedded.language_codes import LANGUAGES
from manyheads.data.embedded.phrases import Writer, locale_of, split_of
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError

FRAGMENTS = 500  # number of fragments of each kind (such as dates) that are generated for each pair of languages


def cldr_languages(*, seed: int = 0, size: int = 48_000) -> SplitData[Labeled]:
    """Generate phrases that are labeled by language code.

    About `size` phrases are for training, and size // 12 each for validation and test. No phrase occurs twice. The
    result depends only on the seed and the version of Babel.
    """
    counts = {"train": size // 60, "validation": size // 720, "test": size // 720}
    if counts["test"] < 1:
        raise UserError(f"size={size}: expected at least 720 phrases; with fewer, some languages have no test phrase")
    languages_of: defaultdict[str, set[str]] = defaultdict(set)  # all languages in which each phrase occurs
    phrases_of: dict[str, list[tuple[str, str]]] = {split: [] for split in counts}
    for first, second in zip(LANGUAGES[::2], LANGUAGES[1::2], strict=True):
        writer = Writer(locale_of(first), locale_of(second), Random(f"{seed} {first}"))
        kinds = [list(islice(kind, FRAGMENTS)) for kind in writer.kinds().values()]
        training_targets = {f.target for kind in kinds for f in kind if split_of(f.source) == "train"}
        for split, count in counts.items():
            # Different phrases in one language can have the same translation. A held-out phrase must therefore not
            # occur in the training data in either language.
            pools = [
                [
                    f
                    for f in kind
                    if split_of(f.source) == split and (split == "train" or f.target not in training_targets)
                ]
                for kind in kinds
            ]
            for fragment in writer.phrases(pools, count, []):
                for phrase, language in ((fragment.source, first), (fragment.target, second)):
                    languages_of[phrase].add(language)
                    phrases_of[split].append((phrase, language))
    seen: set[str] = set()
    splits = []
    for split, phrases in phrases_of.items():
        kept = [
            (p, n) for p, n in dict(phrases).items() if _has_word(p) and len(languages_of[p]) == 1 and p not in seen
        ]
        seen.update(phrase for phrase, _ in kept)
        Random(f"{seed} {split}").shuffle(kept)
        splits.append(Labeled([phrase for phrase, _ in kept], [language for _, language in kept]))
    train, validation, test = splits
    return SplitData(train, validation, test)


def _has_word(phrase: str) -> bool:
    """Return True if a phrase contains a word. Phrases such as "NZ$ 5" and "USD 12" contain only numbers and codes."""
    return any(c.isalpha() and c > "\u024f" for c in phrase) or any(
        len(letters) > 3 and not letters.isupper() for letters in re.findall(r"[^\W\d_]+", phrase)
    )
