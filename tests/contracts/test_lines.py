"""Texts from arguments or from lines of stdin, answered in order; errors name the text or its line."""

import json
import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import pytest

from manyheads import cli
from manyheads.cli import lines
from manyheads.data.text.text_faults import ItemError
from manyheads.tasks.translation.options import Translation
from manyheads.tasks.verbs import COMMANDS, SERVED
from tests.support.refusals import refused


class Echo:
    """Stub of a translator: returns the text in capitals, `nbest` times."""

    reports: ClassVar[tuple[str, ...]] = ()
    verbs = ("translate", "evaluate")

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def translate(self) -> None:
        raise AssertionError("the command wants the n best")

    decoding: ClassVar = {"beam": 4, "alpha": 0.6}

    def nbest(self, texts: list[str], count: int, *, truncate: bool, **options: Any) -> list[list[Translation]]:
        self.asked.append(list(texts))
        for number, text in enumerate(texts):
            if len(text) > 99 and not truncate:
                raise ItemError(number, f"has {len(text)} tokens, the model takes 99")
        return [[Translation(t.upper(), 0.0 - i, -2.0) for i in range(count)] for t in texts]

    def score(self, sources: list[str], targets: list[str], alpha: float) -> list[Translation]:
        return [Translation(t, -0.5, -1.0) for t in targets]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    model = Echo()
    monkeypatch.setattr("manyheads.tasks.loading.load", lambda name, **_: model)
    return model


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes], None]:
    def give(content: bytes) -> None:
        path = tmp_path / "stdin"
        path.write_bytes(content)
        monkeypatch.setattr(sys, "stdin", path.open("rb"))

    return give


def test_texts_may_stand_between_options(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["translate", "m", "one", "--beam", "2", "two", "--alpha", "1", "three\nlines"]) == 0
    assert capsys.readouterr().out == "ONE\nTWO\nTHREE LINES\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\n", "ONE\n"),
        (b"one\n\n \ntwo", "ONE\n\n \nTWO\n"),
        ("a\u2028b\x0bc\x85d\rE\n".encode(), "A\u2028B\x0bC\x85D E\n"),  # no line break but \n
        (b"".join(b"line %d\n" % i for i in range(20_000)), "".join(f"LINE {i}\n" for i in range(20_000))),
    ],
)
def test_one_line_of_input_gives_one_line_of_output(
    content: bytes, expected: str, echo: Echo, stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(content)
    assert cli.main(["translate", "m"]) == 0
    assert capsys.readouterr().out == expected
    assert all(sum(len(text) + 1 for text in chunk) < 2 * lines.CHUNK for chunk in echo.asked)


def test_a_slow_writer_is_answered_line_by_line(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    os.write(write, b"one\ntw")
    chunks = lines.stdin()
    assert next(chunks) == ["one"]
    os.write(write, b"o\n")
    assert next(chunks) == ["two"]
    os.close(write)
    assert list(chunks) == []


def test_an_endless_line_of_stdin_is_bounded(
    echo: Echo, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = b"x" * (3 * lines.CHUNK)
    stdin(b"one\n" + long + b"\nthree")
    assert [line for chunk in lines.stdin() for line in chunk] == ["one", long.decode(), "three"]
    monkeypatch.setattr("manyheads.data.readers.splits.MAX_LINE_BYTES", 2 * lines.CHUNK)
    stdin(long)
    assert "<stdin>:1: line longer than 131,072 bytes" in refused(capsys, "translate", "m")


def test_nbest_scores_and_json(
    echo: Echo, stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["translate", "m", "a", "b", "--nbest", "2"]) == 0
    assert capsys.readouterr().out == "1\t0.0000\tA\n1\t-1.0000\tA\n2\t0.0000\tB\n2\t-1.0000\tB\n"
    stdin(b"a\n\nb\n")
    assert cli.main(["translate", "m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["source"] for item in found] == ["a", "", "b"]
    assert found[2]["translations"] == [{"text": "B", "score": 0.0, "log_probability": -2.0}]
    targets = tmp_path / "targets.de"
    targets.write_text("x\ny\n")
    assert cli.main(["translate", "m", "a", "b", "--score-target", str(targets)]) == 0
    assert capsys.readouterr().out == "-0.5000\t-1.0000\n" * 2
    assert f"{targets}: expected 1 lines, one per source, found 2" in refused(
        capsys, "translate", "m", "a", "--score-target", str(targets)
    )


def test_malformed_stdin_is_reported_with_its_line(
    echo: Echo, stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(b"fine\n\xff\n")
    assert "<stdin>:2: expected UTF-8" in refused(capsys, "translate", "m")
    monkeypatch.setattr(lines, "CHUNK", 4)  # the fault is in a later chunk
    stdin(b"one\ntwo\n" + b"x" * 100 + b"\n")
    assert cli.main(["translate", "m"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "ONE\nTWO\n"
    assert shown.err == "manyheads: <stdin>:3: this text has 100 tokens, the model takes 99\n"
    assert "text 1 has 100 tokens" in refused(capsys, "translate", "m", "x" * 100)
    assert cli.main(["translate", "m", "x" * 100, "--truncate"]) == 0


def test_a_model_without_labels_is_refused_before_scoring(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Echo, "outcome", lambda *_, **__: pytest.fail("it is scored"), raising=False)
    assert "found --by-label, but the model supports no such option" in refused(capsys, "evaluate", "m", "--by-label")


class Pairs:
    """Stub of a classifier of text pairs."""

    verbs = ("classify",)
    reads, takes_pairs = "texts", True

    def predictions(self, texts: list[str], pairs: list[str] | None, *_: Any, truncate: bool) -> list[Any]:
        return [[] for _ in texts]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\n", "<stdin>:2: this text has 0 tabs: expected two texts separated by one tab"),
        (
            b"a\nb\tc\n",
            "<stdin>:2: this text has a tab, but the first text has none: give only pairs, or only single texts",
        ),
    ],
)
def test_malformed_pairs_are_reported_with_their_line(
    content: bytes, message: str, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("manyheads.tasks.loading.load", lambda name, **_: Pairs())
    stdin(content)
    assert refused(capsys, "classify", "m") == f"manyheads: {message}\n"


def test_impossible_targets_have_null_scores_in_json(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Echo, "score", lambda *_: [Translation("x", -0.5, -1.0), Translation("<pad>", -inf, -inf)])
    targets = tmp_path / "targets.de"
    targets.write_text("x\n<pad>\n")
    assert cli.main(["translate", "m", "a", "b", "--score-target", str(targets), "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert [line["score"] for line in scored] == [-0.5, None]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["translate", "m", "FILE"], "to translate its lines, use --input FILE; to use its name, echo FILE |"),
        *((["classify", "m", *more], "to read its lines, use < FILE") for more in (["FILE"], ["a", "--pair", "FILE"])),
        *(([verb, "m", "FILE"], "to read its lines, use < FILE") for verb in ("tag", "fill", "generate", "embed")),
        (["answer", "m", "--question", "a?", "--context", "FILE"], "to read it, use --context @FILE"),
        *(([verb, "m", "FILE"], 'to read it, give its content: "$(cat FILE)"') for verb in ("attend", "lens")),
    ],
)
def test_the_name_of_a_file_is_no_text(
    given: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("manyheads.tasks.loading.load", lambda *_, **__: Pairs())
    monkeypatch.setattr(Pairs, "verbs", COMMANDS)
    (file := tmp_path / "test.tsv").write_text("a\n")
    message = refused(capsys, *(word.replace("FILE", str(file)) for word in given))
    assert f"{file} is a file, but a text is expected: {hint.replace('FILE', str(file))}" in message


@pytest.mark.parametrize("verb", sorted({*SERVED} - {"answer", "rerank"}))  # both have further arguments
def test_no_texts_are_an_error(
    verb: str, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("manyheads.tasks.loading.load", lambda *_, **__: Pairs())
    monkeypatch.setattr(Pairs, "verbs", COMMANDS)
    stdin(b"")
    assert "<stdin>: found no texts" in refused(capsys, verb, "m")
