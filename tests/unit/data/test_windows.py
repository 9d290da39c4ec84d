"""Windows as in the published SQuAD script, and special-token templates as in the tokenizer's encodings."""

import pytest
from tokenizers import Tokenizer

from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.data.text.windows import SpecialTokenTemplate, Window, owners, windows


def published_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """The loop of the script, in its words: (start_offset, length)."""
    spans, start = [], 0
    while start < length:
        size = min(length - start, room)
        spans.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    return spans


@pytest.mark.parametrize(
    ("length", "room", "stride"), [(1, 5, 2), (5, 5, 2), (6, 5, 2), (17, 5, 2), (40, 7, 7), (9, 4, 1)]
)
def test_windows_match_the_published_ones(length: int, room: int, stride: int) -> None:
    published = published_spans(length, room, stride)
    spans = windows(length, room, stride)
    assert [(w.start, w.end - w.start) for w in spans] == published

    def is_max_context(number: int, token: int) -> bool:
        """_check_is_max_context of the script."""
        best_score, best = None, None
        for i, (start, size) in enumerate(published):
            end = start + size - 1
            if token < start or token > end:
                continue
            score = min(token - start, end - token) + 0.01 * size
            if best_score is None or score > best_score:
                best_score, best = score, i
        return best == number

    owner = owners(spans)
    assert len(owner) == length
    for token in range(length):
        assert [i for i in range(len(spans)) if is_max_context(i, token)] == [owner[token]]


def test_the_scripts_example_is_reproduced() -> None:
    """Its comment: "the man went to the", "to the store and bought", "and bought a gallon of" ("bought" is word 7)."""
    spans = windows(11, 5, 3)
    assert spans == [Window(0, 5), Window(3, 8), Window(6, 11)]
    assert owners(spans)[7] == 2  # 1 word to its left and 3 to its right, against 4 and 0


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece(["a bee sees a sea", "see a bee"] * 5, 19)


def test_special_tokens_follow_the_tokenizers_template(tokenizer: Tokenizer) -> None:
    single, pair = SpecialTokenTemplate.of(tokenizer), SpecialTokenTemplate.of(tokenizer, pair=True)
    assert (len(single), len(pair)) == (2, 3)
    first, second = (tokenizer.encode(t, add_special_tokens=False).ids for t in ("a bee sees", "see"))
    whole = tokenizer.encode("a bee sees")
    assert single.around(first) == (whole.ids, whole.type_ids)
    whole = tokenizer.encode("a bee sees", "see")
    assert pair.around(first, second) == (whole.ids, whole.type_ids)


def test_a_tokenizer_without_special_tokens_adds_none(tokenizer: Tokenizer) -> None:
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.post_processor = None
    assert SpecialTokenTemplate.of(bare).around([7, 8]) == ([7, 8], [0, 0])
