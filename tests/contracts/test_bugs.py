"""Bugs keep their type and traceback; mistakes of users are one line."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

import manyheads
from manyheads import cli
from manyheads.errors import UserError
from manyheads.training import distributed_map
from tests.stress.fuzzing.__main__ import add

PACKAGE = Path(manyheads.__file__).parent


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FileNotFoundError(2, "No such file", str(PACKAGE / "assets" / "page.html")), 1),
        (FileNotFoundError(2, "No such file", "data/page.html"), 2),
        (Exception("of another library"), 1),
    ],
)
def test_causes_in_the_package_are_bugs(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("manyheads.cli.recipes._recipes", fail)
    assert cli.main(["recipes"]) == status
    assert ("this is a bug" in capsys.readouterr().err) == (status == 1)


def test_a_failing_tokenizer_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from manyheads.tasks.encoding import encode

    broken = Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    monkeypatch.setattr("manyheads.cli.recipes._recipes", lambda *_: encode(broken, ["b"], None, None, truncate=False))
    assert cli.main(["recipes"]) == 2
    assert "the model's tokenizer failed on a text" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [UserError, ValueError, KeyError])
def test_only_errors_of_users_are_sent_to_all_ranks(kind: type[Exception]) -> None:
    class Ranks:
        world = 2

        def all_gather(self, value: Any) -> list[Any]:
            return [value, value]

    def fail() -> None:
        raise kind("fault")

    with pytest.raises(kind, match="fault") as caught:
        distributed_map._gather_results(Ranks(), fail)  # type: ignore[arg-type]
    assert type(caught.value) is kind


def test_a_shorter_fuzzing_keeps_the_longer_record(tmp_path: Path) -> None:
    for seconds in (600.0, 18.0):
        add(tmp_path / "fuzzing.json", "parallel", {"seconds": seconds})
    assert '"seconds": 600.0' in (tmp_path / "fuzzing.json").read_text()
