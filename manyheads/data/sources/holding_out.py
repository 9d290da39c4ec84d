"""Validation data that are held out of texts by size: text lengths may differ by a factor of a thousand.

By default, a hash of each text decides, as for all other data. If this holds out less than half or more than twice the
requested fraction of the characters, other whole texts are selected by their hashes. If no selection of whole texts is
close to the fraction, the end of the longest text is held out.
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

SHARE = 0.05  # fraction of documents and questions that is held out
_LARGEST_PART = 0.9  # maximum fraction of a text that is cut off
_FACTOR = 2.0  # accepted factor between the held-out and the requested fraction


def hold_out_texts(train: Texts, share: float, *, by_number: bool = False) -> tuple[Texts, Texts]:
    """Split texts into (training, validation).

    share      fraction of the characters for validation
    by_number  hold out whole texts of any size, as earlier versions did
    """
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
    """Split documents into (training, validation) like `hold_out_texts`. Documents are cut between sentences."""
    hashes, sizes = hashes_of(train.texts), np.fromiter(map(len, train.texts), np.int64)
    held_out = below_share(hashes, SHARE, what="document")
    if not by_number and not _near(sizes[held_out].sum() / sizes.sum(), SHARE):
        chosen = _chosen(hashes, sizes, SHARE)
        if chosen is None:
            return _cut(train, _longest(hashes, sizes, SHARE), SHARE * sizes.sum())
        held_out = chosen
    return train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))


def hold_out_questions(train: Questions, *, by_number: bool = False) -> tuple[Questions, Questions]:
    """Split questions into (training, validation) by article.

    Articles are selected so that the number of held-out questions is close to the fraction. If that is impossible
    because there are few articles, the one with the fewest questions is held out.
    """
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
    """Return a mask (N,) of the items to hold out, or None if they are not close to the fraction.

    Items are selected in the order of their hashes while they fit into the fraction. Copies are selected together.
    """
    different, numbers = np.unique(hashes, return_inverse=True)
    totals = np.bincount(numbers, weights=sizes)
    target = share * totals.sum()
    taken, held = 0.0, np.zeros(len(different), bool)
    for number, size in enumerate(totals.tolist()):
        if taken + size <= 1.25 * target:
            held[number], taken = True, taken + size
    return held[numbers] if _near(taken / totals.sum(), share) else None


def _longest(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], share: float) -> int:
    """Return the index of the text to cut: the longest text without a copy. Raises UserError if it is too short."""
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    single = np.where(counts[numbers] == 1, sizes, 0)
    longest = int(single.argmax())
    if _LARGEST_PART * single[longest] < share / _FACTOR * sizes.sum():
        raise UserError(f"failed to hold out {share:.0%} of the text, because the longest texts are copies of "
                        "each other; "
                        "give validation data: validation=PATH")  # fmt: skip
    return longest


def _parts(train: Texts, held_out: NDArray[np.bool_]) -> tuple[Texts, Texts]:
    return train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))


def _told(kept: Texts, held: Texts) -> tuple[Texts, Texts]:
    held = replace(held, skips={})  # skipped texts are reported once, with the training data
    examined(kept, held)
    return kept, held


def _cut(train: Documents, longest: int, characters: float) -> tuple[Documents, Documents]:
    """Split off the last sentences of a document, about `characters` in total. Returns (training, validation)."""
    sentences = train.texts[longest].split("\n")
    behind = np.cumsum([len(sentence) + 1 for sentence in reversed(sentences)])
    count = 1 + int(np.abs(behind[:-1] - characters).argmin()) if len(sentences) > 1 else 0
    smallest = min(range(len(train)), key=lambda row: len(train.texts[row]))
    # more than the fraction; the report shows the actual one
    if not count and len(train.texts[smallest]) >= characters:
        return train.subset([row for row in range(len(train)) if row != smallest]), train.subset([smallest])
    if not count or not _near(behind[count - 1] / max(characters, 1) * SHARE, SHARE):
        raise UserError(
            f"failed to hold out {SHARE:.0%} of the text, because its longest document has {len(sentences):,} "
            "sentences; "
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
