"""Wrong inputs of every public method of every predictor: one clear error, none from inside, and no silent result.

The methods and their parameters are read from the classes, so a new method is covered, or its parameter is missing in
`RIGHT` and the test says so.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from manyheads.errors import UserError
from manyheads.generation import Sampling
from manyheads.models.presets import build
from manyheads.tasks.loading import load
from manyheads.tasks.registry import RECIPES, is_for_any_data
from manyheads.tasks.table import PREDICTORS
from tests.support import services

TEXT, PICTURE = "the cat sat on the [MASK]", Image.new("L", (8, 8), 90)
PIXELS = np.zeros((1, 8, 8), np.float32)
# a right value for each parameter that has no default; the first parameter gets the wrong values
RIGHT: dict[str, Any] = {
    "texts": [TEXT], "text": TEXT, "prompts": [TEXT], "images": [PICTURE], "image": PICTURE, "count": 1,
    "sources": [TEXT], "targets": [TEXT], "question": "a cat?", "context": TEXT, "pairs": [("a cat?", TEXT)],
    "sampling": Sampling(), "others": [], "arrays": [PIXELS], "batches": [torch.zeros(1, 1, 8, 8)], "rows": ["one"],
    "sizes": [(8, 8)], "query": TEXT, "queries": [TEXT], "documents": [TEXT],
    "clips": None, "data": None, "max_tokens": 1, "clean": TEXT, "corrupt": TEXT,
}  # fmt: skip


class Frame:
    """Data frame: its items are the names of its columns."""

    columns = ("caption", "text")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return 600


WRONG: dict[str, Any] = {
    "None": None, "NaN": float("nan"), "a number": 7.5, "bytes": b"the cat", "a dictionary": {"text": [TEXT]},
    "a frame": Frame(), "an object": object(), "a set": {TEXT}, "a list of None": [None], "some None": [TEXT, None],
    "a list of NaN": [float("nan")], "numbers": [5, 6], "a deep list": [[[TEXT]]], "a list of bytes": [b"a"],
    "a list of dictionaries": [{"words": 5}], "a matrix": np.array([["a", "b"]]), "a scalar": np.array("a"),
    "a class": str, "True": True,
}  # fmt: skip
EMPTY: dict[str, Any] = {
    "no texts": [], "an empty text": "", "blanks": [" ", ""], "a surrogate": ["\ud800"], "no array": np.array([], str),
}  # fmt: skip
# values that are right as the first argument of a method: rows of data
ACCEPTED = dict.fromkeys(("evaluate", "outcome"), ("a dictionary", "a frame", "a list of dictionaries", "a matrix"))
FAST = ("max_tokens",)  # options that make a right call fast
KINDS = list(dict.fromkeys(row.predictor.split(":")[1] for row in PREDICTORS))


@pytest.fixture(scope="module")
def predictors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One small untrained predictor of each class in the table of predictors."""
    folder = tmp_path_factory.mktemp("wrong")

    def image_model(name: str, preset: str, record: dict[str, Any] | None = None, **settings: Any) -> Path:
        sizes = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.5]}
        directory.save(folder / name, build(manyheads.preset(preset, **settings)), preprocessing=sizes)
        if record:
            (folder / name / "result.json").write_text(json.dumps({"data": record}))
        return folder / name

    vit: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}
    translator = services.translator(folder / "translator")
    paths = [
        translator, services.language_model(folder / "gpt", max_positions=32),
        services.bert(folder / "filler", head="masked_lm"), services.bert(folder / "answerer", head="question"),
        services.bert(folder / "classifier", head="sequence", labels=("a", "b")), services.bert(folder / "encoder"),
        services.bert(folder / "tagger", head="token", labels=("O", "B-X")),
        image_model("vit", "vit/2-8", labels=("a", "b"), **vit), image_model("eyes", "vit/2-8", labels=(), **vit),
        services.detector(folder / "detector"), services.image_writer(folder / "igpt"),
    ]  # fmt: skip
    found = {type(predictor).__name__: predictor for predictor in map(load, paths)}
    assert {*found} == {*KINDS}
    return found


def fault(method: Callable[..., Any], /, *values: Any, right: bool = False, **others: Any) -> str:
    """Return a description of a result or an error that users must not meet, otherwise an empty string."""
    try:
        result = method(*values, **others)
    except UserError:
        return ""
    except TypeError as error:
        return "" if "has no option" in str(error) else f"TypeError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if right else f"returned {result!r:.60}"


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_inputs_are_refused_clearly(kind: str, predictors: dict[str, Any]) -> None:
    faults = {}
    for name, _ in inspect.getmembers(type(predictors[kind]), inspect.isfunction):
        method = getattr(predictors[kind], name)
        if name.startswith("_") or not (parameters := [*inspect.signature(method).parameters.values()]):
            continue
        first, *others = parameters
        required = {p.name: RIGHT[p.name] for p in others if p.default is p.empty or p.name in FAST}
        for what, value in WRONG.items():
            right = (value is None and first.default is None) or what in ACCEPTED.get(name, ())
            faults[f"{name}({what})"] = fault(method, value, **required, right=right)
        for what, value in EMPTY.items():
            faults[f"{name}({what})"] = fault(method, value, **required, right=True)
        faults[f"{name}(sede=1)"] = fault(method, RIGHT.get(first.name), **required, sede=1)
    assert len(faults) > 40
    assert {call: problem for call, problem in faults.items() if problem} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_options_are_refused_clearly(kind: str, predictors: dict[str, Any]) -> None:
    faults = {}
    for name, _ in inspect.getmembers(type(predictors[kind]), inspect.isfunction):
        method = getattr(predictors[kind], name)
        parameters = [] if name.startswith("_") else [*inspect.signature(method).parameters.values()]
        required = {p.name: RIGHT[p.name] for p in parameters[:1] if p.name in RIGHT}
        required |= {p.name: RIGHT[p.name] for p in parameters if p.default is p.empty}
        for p in parameters[1:]:
            numbers = ("5", {5: 5}) if isinstance(p.default, bool | int | float) else ()
            for value in (object(), b"a", [object()], [None], Frame(), float("nan"), *numbers):
                faults[f"{name}({p.name}={value!r:.20})"] = fault(method, **{**required, p.name: value})
    assert {call: problem for call, problem in faults.items() if problem} == {}


@pytest.mark.parametrize("form", ["list", "tuple", "array", "Series", "Arrow array", "generator"])
def test_one_text_gives_one_result_and_any_column_a_list(form: str, predictors: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas")
    forms = {"list": list, "tuple": tuple, "array": np.array, "Series": pandas.Series, "generator": iter}
    column = pytest.importorskip("pyarrow").array if form == "Arrow array" else forms[form]
    calls: dict[str, Callable[[Any], Any]] = {
        "translate": predictors["Translator"].translate, "nbest": lambda x: predictors["Translator"].nbest(x, 2),
        "embed": predictors["Encoder"].embed,
        "classify": predictors["Classifier"].classify, "tag": predictors["Tagger"].tag,
        "fill": predictors["MaskedLanguageModel"].fill,
        "generate": lambda x: predictors["LanguageModel"].generate(x, max_tokens=2),
    }  # fmt: skip
    for name, call in calls.items():
        # A batch of one text in both, because rounding depends on the size of the batch.
        assert str(call(column([TEXT]))) == str([call(TEXT)]), name
        assert len(call(column([TEXT, TEXT]))) == 2, name
    score, answer = predictors["Translator"].score, predictors["QuestionAnswerer"].answer
    align = predictors["Translator"].alignments
    assert align(column([TEXT]), column(["the cat"]), layer=0) == [align(TEXT, "the cat", layer=0)]
    assert score(column([TEXT]), column(["the cat"])) == [score(TEXT, "the cat")]
    assert answer(column(["a cat?"]), column([TEXT]), nbest=2) == [answer("a cat?", TEXT, nbest=2)]


def test_errors_name_the_row_and_its_label_in_the_frame(predictors: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": [TEXT, None], "long": [TEXT, "cat " * 99]}, index=[1000, 1007])
    classify = predictors["Classifier"].classify
    for column, message in (("text", "text 2 is "), ("long", "text 2 has 101 tokens")):
        with pytest.raises(UserError, match=rf"{message}.*\(index label 1007\)"):
            classify(frame[column])
    with pytest.raises(UserError, match=r"DataFrame, whose items are columns: give one column, such as df\['text'\]"):
        classify(frame)


@pytest.mark.parametrize("first", ["Tagger", "Classifier"])
def test_models_are_evaluated_and_compared_by_path(first: str, predictors: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "Tagger.tsv").write_text("the\tO\ncat\tB-X\n")
    (tmp_path / "Classifier.tsv").write_text("text\tlabel\nthe cat\ta\nthe dog\tb\n")
    data, predictor = str(tmp_path / f"{first}.tsv"), predictors[first]
    expected = predictor.outcome(data)
    assert predictor.evaluate(data).metrics == expected.metrics
    assert manyheads.compare(str(predictor.path), predictor, data)["items"] == len(expected.inputs)
    with pytest.raises(UserError, match="3 has no predictions to score: expected two models"):
        manyheads.compare(predictor, 3, data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"load\(\) has no option 'precison': did you mean precision\?"):
        manyheads.load(predictor.path, precison="bf16")  # type: ignore[call-arg]


def test_a_resumed_run_has_one_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resume='.*a' and out='.*b': expected one of them"):
        manyheads.train(resume=tmp_path / "a", out=tmp_path / "b")


def test_recipes_for_any_data_keep_the_best_weights() -> None:
    own = [name for name in RECIPES if is_for_any_data(name)]
    assert {"text-classification", "single-sentence", "sentence-pair", "question-answering"} <= {*own}
    assert not {"sst2", "mrpc", "conll2003", "xquad", "translation/multi30k", "cifar10/resnet"} & {*own}
