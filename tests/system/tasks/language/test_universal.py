"""Universal Transformer with halting in the language-modeling recipe."""

from pathlib import Path

from tests.contracts.tasks.language.test_run import VERSE, learns_by_heart


def test_a_universal_transformer_overfits_a_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text(VERSE * 20, encoding="utf-8")
    learns_by_heart(tmp_path / "data", tmp_path, "basic")
