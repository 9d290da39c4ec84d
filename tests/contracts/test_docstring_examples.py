"""Examples in docstrings and of docs/reference/python.md, run on small untrained models."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from manyheads.models.presets import build
from manyheads.tasks.loading import load
from manyheads.tasks.table import PREDICTORS
from tests.paths import ROOT
from tests.support import services

PAGE = ROOT / "docs" / "reference" / "python.md"
MODULES = (
    "analysis.costs", "analysis.explanations.explanation", "analysis.lens.lens", "analysis.lens.values",
    "analysis.maps.attention_maps", "analysis.maps.layers", "core.editing", "core.recording", "directory", "export",
    "models", "models.presets", "runs.listing", "sklearn", "tasks.answering.predictor",
    "tasks.classification.predictor", "tasks.comparison", "tasks.evaluation", "tasks.explaining",
    "tasks.images.predictor", "tasks.language.predictor", "tasks.lens", "tasks.loading",
    "tasks.masked_words.predictor", "tasks.patching", "tasks.predictor", "tasks.tagging.predictor", "tasks.train",
    "tasks.translation.predictor",
)  # fmt: skip
CALLED = {"evaluate": "outcome"}  # method of a predictor for a verb, if the names differ


def models(folder: Path) -> dict[str, Any]:
    """Return small untrained predictors by the names that the examples use. They are saved in runs/NAME."""
    made = {
        "translator": services.translator(folder / "runs/translation"),
        "gpt": services.language_model(folder / "runs/gpt"),
        "bert": services.bert(folder / "runs/bert", head="masked_lm"),
        "classifier": services.bert(folder / "runs/classifier", head="sequence", labels=("negative", "positive")),
        "tagger": services.bert(folder / "runs/tagger", head="token", labels=("O", "B-PLACE", "I-PLACE")),
        "answerer": services.bert(folder / "runs/answerer", head="question"),
        "encoder": services.bert(folder / "runs/encoder"),
        "detector": services.detector(folder / "runs/detector"),
        "igpt": services.image_writer(folder / "runs/image-writing"),
    }
    data = {"source": "en", "target": "de", "fingerprints": {}}
    (made["translator"] / "result.json").write_text(json.dumps({"data": data}))
    (folder / "runs/first/state").mkdir(parents=True)
    (folder / "runs/first/state/finished.json").write_text("{}")
    (folder / "runs/first/result.json").write_text(json.dumps({"recipe": "tagging"}))
    torch.manual_seed(0)
    vit = build(manyheads.preset("vit/2-8", width=16, layers=2, heads=2, labels=tuple("0123456789")))
    made["vit"] = folder / "runs/vit"
    sizes = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.5]}
    directory.save(made["vit"], vit, preprocessing=sizes)
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / "digit.png")
    Image.fromarray(np.arange(128 * 128, dtype=np.uint8).reshape(128, 128)).save(folder / "scene.png")
    (folder / "test.tsv").write_text("en\tde\nthe cat\tthe dog\nthe dog\tthe cat\n")
    (folder / "labeled.tsv").write_text("text\tlabel\nthe cat\tnegative\nthe dog\tpositive\n")
    return {name: load(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("examples")
    return {"folder": folder, "manyheads": manyheads, "torch": torch, **models(folder)}


class Finder(doctest.DocTestFinder):
    """Finder that also finds the examples of methods that `checked_methods` wraps."""

    def _from_module(self, module: Any, item: Any) -> bool:
        found: bool = super()._from_module(module, inspect.unwrap(item) if callable(item) else item)  # type: ignore[misc]
        return found


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(namespace["folder"])
    found = import_module(f"manyheads.{module}")
    examples = [test for test in Finder().find(found) if test.examples]
    assert examples
    said: list[str] = []
    for test in examples:
        test.globs |= namespace
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("number", range(8))
def test_the_recipes_of_the_page_run(
    number: int, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(recipes) == 8
    shutil.copytree(namespace["folder"], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "exported", ignore_errors=True)
    monkeypatch.chdir(tmp_path)
    exec(recipes[number], {})


def test_public_names_have_an_example() -> None:
    names = [getattr(manyheads, name) for name in manyheads.__all__ if name != "__version__"]
    assert [name.__name__ for name in names if ">>>" not in (name.__doc__ or "")] == []


def test_the_verbs_of_predictors_have_an_example() -> None:
    predictors = [row.predictor.split(":") for row in PREDICTORS]
    missing = set()
    for module, name in predictors:
        kind = getattr(import_module(f"manyheads.tasks.{module}"), name)
        for verb in kind.verbs:
            method = getattr(kind, CALLED.get(verb, verb))
            if ">>>" not in (method.__doc__ or "") and verb != "evaluate":
                missing.add(f"{name}.{verb}")
    assert missing == set()


def test_names_are_listed_without_torch() -> None:
    from tests.contracts.test_imports import python

    code = "import json, sys, manyheads, manyheads.models as models; "
    code += "print(json.dumps([dir(manyheads), dir(models), 'torch' in sys.modules]))"
    top, listed, torch_imported = json.loads(python(code).stdout)
    assert {"load", "train", "record", "edit", "preset", "build", "compare"} <= set(top)
    assert {"GPT", "GPTConfig", "Transformer", "ViT", "gpt", "vit"} <= set(listed)
    assert not torch_imported
