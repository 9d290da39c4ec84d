"""A parallel corpus that is small enough to memorize."""

from pathlib import Path

import pytest

WORDS = {"one": "eins", "two": "zwei", "red": "rot", "blue": "blau", "dog": "Hund", "cat": "Katze", "and": "und"}


def write_corpus(folder: Path, lines: int = 120) -> Path:
    """Word by word translations, all different; the test file is a part of the training file."""
    folder.mkdir()
    words = list(WORDS)
    sources = [
        " ".join(words[(i // len(words) ** k + k) % len(words)] for k in range(3)) + f" {i % 10}" for i in range(lines)
    ]
    for name, part in (("train", sources), ("val", sources[:20]), ("test", sources[20:50])):
        (folder / f"{name}.en").write_text("".join(f"{s}\n" for s in part), encoding="utf-8")
        targets = [" ".join(WORDS.get(w, w) for w in s.split()) for s in part]
        (folder / f"{name}.de").write_text("".join(f"{t}\n" for t in targets), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")
