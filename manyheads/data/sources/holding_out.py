"""Validation data held out of texts by their size: a few texts may differ in length by a factor of a thousand.

Of many texts, a hash of each text decides, as for all other data. If it would hold out less than half or more than
twice the share of the characters, other whole texts are chosen by their hashes. If no whole texts are near the share,
the end of the longest text is held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.column import SpillingTextBuffer
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.splits import below_share, hashes_of
from manyheads.data.readers.squad import Questions
from manyheads.data.readers.texts import Texts, examined
from manyheads.errors import UserError

SHARE = 0.05  # of documents and questions
_LARGEST_PART = 0.9  # of a text that is cut
_FACTOR = 2.0  # by which a share may differ from the requested one


def hold_out_texts(train: Texts, share: float, *, by_number: bool = False) -> tuple[Texts, Texts]:
    """(for training, for validation). `by_number`: whole texts, of whatever size, as earlier versions did."""
    if len(train) == 1:
        return _told(*train.halves(share))
    held_out = below_share(train.hashes, share, what="text")
    kept, held = _told(*_parts(train, held_out))
    sizes = kept.facts.characters, held.facts.characters
    if by_number or _near(sizes[1] / sum(sizes), share):
        return kept, held
    sizes_of_texts = train.sizes
    chosen = _chosen(train.hashes, sizes_of_texts, share)
    if chosen is not None:
        return _told(*_parts(train, chosen))
    longest = _longest(train.hashes, sizes_of_texts, share)
    part = min(share * sizes_of_texts.sum() / sizes_of_texts[longest], _LARGEST_PART)
    return _told(*train.halves(part, longest))


def hold_out_documents(train: Documents, *, by_number: bool = False) -> tuple[Documents, Documents]:
    """As `hold_out_texts`, of documents; the end of one is whole sentences."""
    hashes, sizes = hashes_of(train.texts), np.fromiter(map(len, train.texts), np.int64)
    held_out = below_share(hashes, SHARE, what="document")
    if not by_number and not _near(sizes[held_out].sum() / sizes.sum(), SHARE):
        chosen = _chosen(hashes, sizes, SHARE)
        if chosen is None:
            return _cut(train, _longest(hashes, sizes, SHARE), SHARE * sizes.sum())
        held_out = chosen
    return train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))


def hold_out_questions(train: Questions, *, by_number: bool = False) -> tuple[Questions, Questions]:
    """All questions of some articles, so that the number of questions is near the share; of few articles the one with
    the fewest questions."""
    articles = hashes_of(item.article for item in train.items)
    held_out = below_share(articles, SHARE, what="article")
    if not by_number and not _near(held_out.mean(), SHARE):
        chosen = _chosen(articles, np.ones(len(train), np.int64), SHARE)
        if chosen is None:
            different, counts = np.unique(articles, return_counts=True)
            chosen = articles == different[counts.argmin()]
        held_out = chosen
    return train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))


def _near(found: float, share: float) -> bool:
    return share / _FACTOR <= found <= share * _FACTOR and 1 - found >= (1 - share) / _FACTOR


def _chosen(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], share: float) -> NDArray[np.bool_] | None:
    """(N,) True for the items to hold out, all copies of each: in the order of their hashes, those that fit into the
    share. None if they are not near it."""
    different, numbers = np.unique(hashes, return_inverse=True)
    totals = np.bincount(numbers, weights=sizes)
    target = share * totals.sum()
    taken, held = 0.0, np.zeros(len(different), bool)
    for number, size in enumerate(totals.tolist()):
        if taken + size <= 1.25 * target:
            held[number], taken = True, taken + size
    return held[numbers] if _near(taken / totals.sum(), share) else None


def _longest(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], share: float) -> int:
    """The index of the text to cut: the longest text without a copy. Raises UserError if it is too short."""
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    single = np.where(counts[numbers] == 1, sizes, 0)
    longest = int(single.argmax())
    if _LARGEST_PART * single[longest] < share / _FACTOR * sizes.sum():
        raise UserError(f"{share:.0%} of the text cannot be held out, as the longest texts are copies of one another; "
                        "give validation data: validation=PATH")  # fmt: skip
    return longest


def _parts(train: Texts, held_out: NDArray[np.bool_]) -> tuple[Texts, Texts]:
    return train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))


def _told(kept: Texts, held: Texts) -> tuple[Texts, Texts]:
    held = replace(held, skips={})  # skipped texts are reported once, with the training data
    examined(kept, held)
    return kept, held


def _cut(train: Documents, longest: int, characters: float) -> tuple[Documents, Documents]:
    """Without the last sentences of a document, and those."""
    sentences = train.texts[longest].split("\n")
    behind = np.cumsum([len(sentence) + 1 for sentence in reversed(sentences)])
    count = 1 + int(np.abs(behind[:-1] - characters).argmin()) if len(sentences) > 1 else 0
    smallest = min(range(len(train)), key=lambda row: len(train.texts[row]))
    if not count and len(train.texts[smallest]) >= characters:  # more than the share, which the report shows
        return train.subset([row for row in range(len(train)) if row != smallest]), train.subset([smallest])
    if not count or not _near(behind[count - 1] / max(characters, 1) * SHARE, SHARE):
        raise UserError(
            f"{SHARE:.0%} of the text cannot be held out, as its longest document has {len(sentences):,} sentences; "
            "give validation data: validation=PATH"
        )
    kept, held = "\n".join(sentences[:-count]), "\n".join(sentences[-count:])
    texts = _gathered(kept if row == longest else text for row, text in enumerate(train.texts))
    return replace(train, texts=texts), replace(train.subset([longest]), texts=[held], skips={})


def _gathered(texts: Iterable[str]) -> Sequence[str]:
    gathering = SpillingTextBuffer()
    for text in texts:
        gathering.append(text)
    return gathering.gathered()
