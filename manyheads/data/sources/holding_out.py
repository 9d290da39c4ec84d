"""Functions that hold out validation data with a given fraction of the characters, even if text lengths differ greatly.

As for all other kinds of data, the hash of each text decides whether the text is held out. If the held-out texts
contain less than half or more than twice the requested fraction of the characters, other whole texts are selected in
the order of their hashes. If no selection of whole texts is close to the fraction, the end of the longest text is held
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.column import SpillingTextBuffer
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.splits import (
    HELD_OUT_FRACTION,
    LARGE_FRACTION,
    MIN_HELD_OUT,
    Data,
    SplitData,
    closest_fraction_mask,
    hashes_of,
    held_out_fraction,
    lowest_fraction_mask,
    parted,
)  # fmt: skip
from manyheads.data.readers.squad import Questions
from manyheads.data.readers.texts import Texts, compute_facts
from manyheads.errors import UserError

D = TypeVar("D", bound=Data)

_MAX_CUT_FRACTION = 0.9  # At most this fraction of a text may be cut off for validation.
_TOLERANCE = 2.0  # The held-out size may differ from the requested size by at most this factor.


def hold_out_texts(train: Texts, fraction: float, *, by_number: bool = False) -> tuple[Texts, Texts]:
    """Split texts into training data and validation data.

    fraction   fraction of the characters in the validation data
    by_number  if True, `fraction` applies to the number of texts, whatever their sizes
    """
    if len(train) == 1:
        return _with_facts(*train.split_off_end(fraction))
    held_out = lowest_fraction_mask(train.hashes, fraction, what="text")
    kept, held = _with_facts(*_split_by_mask(train, held_out))
    sizes = kept.facts.characters, held.facts.characters
    if by_number or _is_close(sizes[1] / sum(sizes), fraction):
        return kept, held
    sizes_of_texts = train.sizes
    selected = _select_items(train.hashes, sizes_of_texts, fraction)
    if selected is not None:
        return _with_facts(*_split_by_mask(train, selected))
    longest = _longest_unique(train.hashes, sizes_of_texts, fraction)
    part = min(fraction * sizes_of_texts.sum() / sizes_of_texts[longest], _MAX_CUT_FRACTION)
    return _with_facts(*train.split_off_end(part, longest))


def hold_out_documents(
    train: Documents, fraction: float = HELD_OUT_FRACTION, *, by_number: bool = False
) -> tuple[Documents, Documents]:
    """Split documents into training data and validation data, as `hold_out_texts` does for texts.

    A document is cut only between sentences.
    """
    hashes, sizes = hashes_of(train.texts), np.fromiter(map(len, train.texts), np.int64)
    held_out = lowest_fraction_mask(hashes, fraction, what="document")
    if not by_number and not _is_close(sizes[held_out].sum() / sizes.sum(), fraction):
        selected = _select_items(hashes, sizes, fraction)
        if selected is None:
            return _split_off_document_end(train, _longest_unique(hashes, sizes, fraction), fraction * sizes.sum())
        held_out = selected
    return _split_by_mask(train, held_out)


def hold_out_questions(train: Questions, fraction: float | None) -> tuple[Questions, Questions]:
    """Split questions into training data and validation data. All questions about one article are in the same part.

    fraction  fraction of the questions in the validation data, met as closely as the articles allow. If None, the
              default of `held_out_fraction` applies
    """
    fraction = held_out_fraction(fraction, len(train))
    articles = hashes_of(item.article for item in train.items)
    return _split_by_mask(train, closest_fraction_mask(articles, fraction, what="article"))


def _is_close(actual: float, fraction: float) -> bool:
    return fraction / _TOLERANCE <= actual <= fraction * _TOLERANCE and 1 - actual >= (1 - fraction) / _TOLERANCE


def _select_items(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], fraction: float) -> NDArray[np.bool_] | None:
    """Select items to hold out. Return a boolean mask (N,), or None if no selection is close to the fraction.

    Items are selected in the order of their hashes, until the total size reaches the fraction. Copies of
    an item are selected together.
    """
    distinct, numbers = np.unique(hashes, return_inverse=True)
    totals = np.bincount(numbers, weights=sizes)
    target = fraction * totals.sum()
    selected_size, held = 0.0, np.zeros(len(distinct), bool)
    for number, size in enumerate(totals.tolist()):
        if selected_size + size <= 1.25 * target:
            held[number], selected_size = True, selected_size + size
    return held[numbers] if _is_close(selected_size / totals.sum(), fraction) else None


def _longest_unique(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], fraction: float) -> int:
    """Return the index of the longest text that occurs once. Its end becomes validation data.

    Raises UserError if this text is too short.
    """
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    single = np.where(counts[numbers] == 1, sizes, 0)
    longest = int(single.argmax())
    if _MAX_CUT_FRACTION * single[longest] < fraction / _TOLERANCE * sizes.sum():
        raise UserError(f"failed to hold out {fraction:.0%} of the text, because the longest texts are copies of "
                        "each other; "
                        "give validation data: validation=PATH")  # fmt: skip
    return longest


def _split_by_mask(train: D, held_out: NDArray[np.bool_]) -> tuple[D, D]:
    return parted(train, np.flatnonzero(~held_out), np.flatnonzero(held_out))


def _with_facts(kept: Texts, held: Texts) -> tuple[Texts, Texts]:
    compute_facts(kept, held)
    return kept, held


def _split_off_document_end(train: Documents, longest: int, characters: float) -> tuple[Documents, Documents]:
    """Split off sentences at the end of a document, with about `characters` characters.

    Returns (training, validation).
    """
    sentences = train.texts[longest].split("\n")
    suffix_lengths = np.cumsum([len(sentence) + 1 for sentence in reversed(sentences)])
    count = 1 + int(np.abs(suffix_lengths[:-1] - characters).argmin()) if len(sentences) > 1 else 0
    smallest = min(range(len(train)), key=lambda row: len(train.texts[row]))
    # The longest document has only one sentence and cannot be cut. Hold out the shortest document, although it is
    # larger than requested; the report shows the actual fraction.
    if not count and len(train.texts[smallest]) >= characters:
        return parted(train, [row for row in range(len(train)) if row != smallest], [smallest])
    if not count or not _is_close(
        suffix_lengths[count - 1] / max(characters, 1) * HELD_OUT_FRACTION, HELD_OUT_FRACTION
    ):
        raise UserError(
            "failed to hold out a part of the text, because its longest document "
            f"has {len(sentences):,} sentences; "
            "give validation data: validation=PATH"
        )
    kept, held = "\n".join(sentences[:-count]), "\n".join(sentences[-count:])
    texts = _buffer_texts(kept if row == longest else text for row, text in enumerate(train.texts))
    return replace(train, texts=texts), replace(train.subset([longest]), texts=[held], skips={})


def _buffer_texts(texts: Iterable[str]) -> Sequence[str]:
    buffer = SpillingTextBuffer()
    for text in texts:
        buffer.append(text)
    return buffer.finish()


def held_out_line(splits: SplitData[D], unit: str, minimum: int = MIN_HELD_OUT) -> str:
    """Return a line that describes the held-out validation data.

    A second line warns if these are fewer than `minimum` items, or a large fraction of the training data.
    """
    fraction = splits.held_out / (splits.held_out + len(splits.train))
    line = f"no validation data: held out {splits.held_out:,} {unit} of the training data ({fraction:.1%})"
    if fraction <= LARGE_FRACTION and splits.held_out >= minimum:
        return line
    amount = "many" if fraction > LARGE_FRACTION else "few"
    return (
        f"{line}\nwarning: these are {amount} {unit} for validation; give validation data with "
        "validation=PATH, or set held_out=FRACTION"
    )
