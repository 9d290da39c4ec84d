"""Choice of the predictor for a model, and checks of texts before they are tokenized."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from manyheads import directory
from manyheads.cli.loading import model_for
from manyheads.data.text.text_faults import CHARACTERS, ItemError
from manyheads.data.text.tokenizers import train_byte_bpe, train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.tasks.loading import load
from manyheads.tasks.table import PREDICTORS
from tests.support import reference

ROOM = 16


def bert(path: Path, **settings: Any) -> Any:
    tokenizer = train_wordpiece(["a dog barks at a cat"] * 3, 40)
    sizes: dict[str, Any] = {"vocab": tokenizer.get_vocab_size(), "width": 8, "layers": 1, "heads": 2,
                             "feed_forward": 8, "max_positions": ROOM}  # fmt: skip
    directory.save(path, Bert(BertConfig(**sizes, **settings)), tokenizer)
    return load(path)


def translator(path: Path) -> Any:
    directory.save(path, reference.ours("marian"), reference.tokenizer())
    return load(path)


def language_model(path: Path) -> Any:
    tokenizer = train_byte_bpe(["a dog barks"] * 3, 260)
    config = GPTConfig(vocab=tokenizer.get_vocab_size(), width=8, layers=1, heads=2, max_positions=ROOM)
    directory.save(path, GPT(config), tokenizer)
    return load(path)


@pytest.mark.parametrize("row", PREDICTORS, ids=lambda row: f"{row.predictor} {row.families[0]}")
def test_every_row_names_a_class(row: Any) -> None:
    module, name = row.predictor.split(":")
    assert isinstance(getattr(import_module(f"manyheads.tasks.{module}"), name), type)


# Each takes 20 to 1,000 ms to import, and none is needed for predictions.
SLOW = ("torch._dynamo", "sympy", "sacrebleu", "rich", "pandas", "pyarrow", "manyheads.data.sources.recorded",
        "manyheads.training.loop", "manyheads.analysis.maps.page")  # fmt: skip


@pytest.mark.parametrize(
    ("task", "save", "verb"),
    [
        ("tagging", lambda path: bert(path, head="token", labels=("O", "B-X")), "tag"),
        ("translation", translator, "translate"), ("language", language_model, "generate"),
    ],
)  # fmt: skip
def test_only_needed_modules_are_imported(task: str, save: Any, verb: str, tmp_path: Path) -> None:
    save(tmp_path)
    code = f"""import sys
sys.modules["numba"] = None
from manyheads.cli import main
main([{verb!r}, {str(tmp_path)!r}, "a"])
print(*(name for name in sys.modules if name.startswith("manyheads.tasks.") and name.count(".") == 3))
print(*(name for name in {SLOW!r} if sys.modules.get(name) is not None))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    *_, modules, slow, _ = done.stdout.decode(errors="replace").split("\n")
    assert {name.split(".")[2] for name in modules.split()} == {task}
    assert slow == ""


@pytest.mark.parametrize("record", [{"data": {"source": "en"}}, {}, "damaged"])
def test_a_model_is_loaded_with_any_record(tmp_path: Path, record: Any) -> None:
    translator(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(record))
    model = load(tmp_path)
    assert repr(model).startswith(f"Translator({str(tmp_path)!r}, marian, ")


def test_a_method_without_a_declared_verb_is_refused(tmp_path: Path) -> None:
    translator(tmp_path)
    with pytest.raises(
        ValueError, match="this model does not support score: use it with manyheads translate or attend"
    ):
        model_for("score", str(tmp_path))


class Untouched:
    """Tokenizer that fails if it receives a text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name in ("encode", "encode_batch"):
            raise AssertionError("a text that is too long is tokenized")
        return getattr(self._tokenizer, name)


def test_text_length_is_checked_before_tokenizing(tmp_path: Path) -> None:
    words = bert(tmp_path / "words", head="masked_lm")
    labels = bert(tmp_path / "labels", head="sequence", labels=("a", "b"))
    answers = bert(tmp_path / "answers", head="question")
    writer, translates = language_model(tmp_path / "gpt"), translator(tmp_path / "marian")
    for model in (words, labels, answers, writer, translates):
        model.tokenizer = Untouched(model.tokenizer)
    long = "a" * (max(ROOM, translates.model.config.max_positions) * CHARACTERS + 1)
    for texts in (
        lambda: words.fill(["[MASK]", f"[MASK] {long}"]),
        lambda: labels.classify(["a", long]),
        lambda: labels.classify(["a", "a"], ["a", long]),
        lambda: translates.translate(["a", long]),
        lambda: translates.score(["a", long], ["a", "a"]),
        lambda: writer.generate(["a", long]),
    ):
        with pytest.raises(ItemError, match="text . has .* characters, (but the model takes|the limit is) .* tokens: "):
            texts()
    for one in (
        lambda: words.attend(f"[MASK] {long}"),
        lambda: labels.attend(long),
        lambda: translates.attend(long),
        lambda: translates.score(["a"], [long]),
        lambda: writer.attend(long),
        lambda: answers.answer(2 * long, "a dog"),
    ):
        with pytest.raises(ValueError, match="(the text|target 1|the question) has .* characters, but the model takes"):
            one()


def test_a_long_text_is_truncated_on_request(tmp_path: Path) -> None:
    labels = bert(tmp_path / "labels", head="sequence", labels=("a", "b"))
    long = "a dog " * ROOM * CHARACTERS
    assert labels.classify(long, truncate=True) == labels.classify("a dog " * ROOM, truncate=True)
    for pair in (None, "a cat", long):
        (side,) = {layer.queries for layer in labels.attend(long, pair, truncate=True)["self"]}
        assert (len(side), side.tokens[-1]) == (ROOM, "[SEP]")
    words = bert(tmp_path / "words", head="masked_lm")
    side = words.attend(f"a [MASK] {long}", truncate=True)["self"][0].queries
    assert (len(side), side.tokens[:3], side.tokens[-1]) == (ROOM, ("[CLS]", "a", "[MASK]"), "[SEP]")


def test_short_lines_are_bounded_by_their_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, positions = translator(tmp_path), list[int]()
    start = type(model.model).start

    def counted(self: Any, source: Tensor, lengths: Tensor, room: int) -> Any:
        positions.append(len(source) * room)
        return start(self, source, lengths, room)

    monkeypatch.setattr(type(model.model), "start", counted)
    together = model.translate(["a", "dog", "two"] * 8, beam=1)
    assert len(positions) == 1
    most = positions.pop() // 3
    for module in ("predictor", "decoding"):
        monkeypatch.setattr(f"manyheads.tasks.translation.{module}.MAX_POSITIONS", most)
    assert model.translate(["a", "dog", "two"] * 8, beam=1) == together
    assert len(positions) > 2
    assert max(positions) <= most


def test_beam_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator(tmp_path)
    for beam in (0, 1025, 10**9):
        with pytest.raises(ValueError, match=f"beam is {beam}: expected 1 to 1024"):
            model.translate("a", beam=beam)
    longest = model.model.config.max_positions
    for module in ("predictor", "decoding"):
        monkeypatch.setattr(f"manyheads.tasks.translation.{module}.MAX_POSITIONS", 8 * longest)
    with pytest.raises(ItemError, match=f"text 2 may become {longest} tokens long, .* a beam of at most 8") as error:
        model.translate(["", "two dogs"], beam=9)
    assert error.value.index == 1
    for setting, value in (("nbest", 1001), ("max_answer", 10**9)):
        with pytest.raises(ValueError, match=f"{setting} is {value}: expected 1 to 1000"):
            bert(tmp_path / "answers", head="question").answer("a", "a", **{setting: value})
    with pytest.raises(ValueError, match="top is 1000000: expected 1 to 1000"):
        bert(tmp_path / "words", head="masked_lm").fill("[MASK]", 10**6)
