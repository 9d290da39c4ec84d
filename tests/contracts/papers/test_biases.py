"""Students of teachers with another architecture: sentences, moved digits, rows of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.labeled_images import ImageData, Item
from manyheads.files import read_json
from manyheads.tasks.train import train
from papers.biases.digits import MOVED, changed_digits
from papers.biases.recipes import TEACHERS
from papers.biases.sentences import DETERMINERS, NOUNS, SentenceSource, harder_sentences, sentences
from papers.recipes import RECIPES


def subject(text: str) -> str:
    """Return the first noun after the first comma, or of the whole text without one."""
    words = text.rpartition(" , ")[2].split()
    return next(word for word in words if word in NOUNS or (word[-1] == "s" and word[:-1] in NOUNS))


def test_the_label_is_the_number_of_the_subject() -> None:
    data = sentences("1", 500, (0, 1, 2))
    for text, label in zip(data.texts, data.labels, strict=True):
        assert label == ("plural" if subject(text) not in NOUNS else "singular"), text
    assert 200 < data.labels.count("plural") < 300


def test_harder_sentences_have_more_modifiers_and_attractors() -> None:
    sets = harder_sentences(1)
    modifiers = {
        name: {sum(word in DETERMINERS for word in text.rpartition(" , ")[2].split()) - 1 for text in data.texts}
        for name, data in sets.items()
    }
    assert modifiers == {"4_modifiers": {4}, "8_modifiers": {8}, "4_attractors": {4}}
    for text, label in zip(sets["4_attractors"].texts, sets["4_attractors"].labels, strict=True):
        words = text.rpartition(" , ")[2].split()
        plurals = [word not in NOUNS for word in words if word in NOUNS or word[:-1] in NOUNS]
        assert plurals == [label == "plural", *[label == "singular"] * 4]


def test_splits_differ_and_depend_on_the_seed() -> None:
    first, again, other = (SentenceSource(seed=seed, size=50).embedded() for seed in (1, 1, 2))
    assert first.train.texts == again.train.texts != other.train.texts
    assert first.test is not None
    assert first.validation.texts != first.test.texts


def test_a_moved_digit_keeps_its_pixels() -> None:
    pixels = np.zeros((28, 28), np.uint8)
    pixels[10:18, 9:20] = np.random.default_rng(1).integers(1, 256, (8, 11))
    images = ImageData([Item(pixels, "3", str(i), (28, 28), "L") for i in range(40)], ("3",))
    changed = changed_digits(images, seed=1)
    places = set()
    for i in range(40):
        moved = np.asarray(changed["moved"].image(i))
        down, right = np.argwhere(moved)[0] - np.argwhere(pixels)[0]
        assert (moved == np.roll(pixels, (down, right), (0, 1))).all()
        assert max(abs(down), abs(right)) <= MOVED
        places.add((int(down), int(right)))
        smaller = Image.fromarray(np.asarray(changed["smaller"].image(i)))
        assert smaller.size == (28, 28)
        left, top, bottom, end = smaller.getbbox() or (0, 0, 0, 0)
        assert bottom - left <= 0.8 * 11 + 2
        assert end - top <= 0.8 * 8 + 2
    assert len(places) > 20


@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_each_student_learns_from_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.biases.sentences.TESTED", 40)
    settings = {"size": 200, "training.epochs": 1, "threads": 1, "model.width": 8, "model.layers": 1}
    table = train("agreement", settings, out=tmp_path / "run", recipes=RECIPES)
    assert [line.split("  ")[0] for line in str(table).splitlines()[1:]] == list(TEACHERS)
    results = {path.name: read_json(path / "result.json", "") for path in (tmp_path / "run").iterdir() if path.is_dir()}
    assert {name: Path(r["overrides"].get("teacher", "")).name for name, r in results.items()} == {
        "teacher": "", "alone": "", "taught": "teacher", "taught-by-its-like": "alone",
    }  # fmt: skip
    assert {*results["taught"]["metrics"]} - {*results["alone"]["metrics"]} == {
        "shared_errors_4_modifiers", "shared_errors_8_modifiers", "shared_errors_4_attractors",
    }  # fmt: skip
    with pytest.raises(ValueError, match="data: the sentences are generated; omit it"):
        train("agreement", {"data": "texts.tsv"}, out=tmp_path / "other", recipes=RECIPES)
