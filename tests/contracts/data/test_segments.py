"""Exhaustive check of encoding in segments on all short texts."""

from __future__ import annotations

from itertools import product

from manyheads.data.text.segments import encoder
from tests.unit.data.test_segments import DTYPE, TOKENIZER


def test_short_texts_of_every_character_class() -> None:
    encode = encoder(TOKENIZER, DTYPE)
    given = ["".join(letters) for letters in product("a1' \n.\xa0s", repeat=5)]
    for _ in range(2):  # of the second time all is known
        assert [ids.tolist() for ids in encode(given)] == [each.ids for each in TOKENIZER.encode_batch(given)]
