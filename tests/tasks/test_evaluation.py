"""Which test data a run is scored on."""

from pathlib import Path

import pytest

from manyheads.tasks.translation.predictor import held_data


@pytest.mark.parametrize("content", ['{"data":', "[]", "\xff"])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"result\.json: damaged"):
        held_data(tmp_path, None)
