"""Windows of long texts."""

import pytest
from tokenizers import Tokenizer

from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.data.text.windows import word_windows


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece(["a bee sees a sea", "see a bee"] * 5, 19)


@pytest.mark.timeout(30)
def test_windows_of_a_long_text_take_linear_time() -> None:
    """Sixty thousand words in twenty thousand windows: looking through all words for each takes minutes."""
    tokenizer = train_wordpiece(["a dog"] * 3, 40)
    parts = word_windows(tokenizer, [["a"] * 60_000], 8)
    assert [word for part in parts for word in part.words] == list(range(60_000))
