from pathlib import Path

from bench.translation_training import measure, word_ids


def test_words_get_one_id_each_and_every_sentence_ends() -> None:
    ids, size = word_ids(["a b, a", "b."])
    assert ids == [[4, 5, 6, 4, 2], [5, 7, 2]]
    assert size == 8


def test_both_sides_are_measured_on_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("ein Hund läuft .\nzwei Katzen\n" * 150, encoding="utf-8")
    (tmp_path / "train.en").write_text("a dog runs .\ntwo cats\n" * 150, encoding="utf-8")
    found = measure(str(tmp_path / "train"), "de", "en", repeats=1, batches=1)
    assert found["ratio"]["runs"] == 1
    assert found["target_tokens_per_second"]["peer"]["median"] > 0
    assert found["limit"]["target_tokens_per_second"] > 0
