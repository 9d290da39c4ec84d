"""Statements that something does not exist ("is not implemented") hold, and fail as soon as it exists.

Below a statement, a comment says what would refute it, one comment for each name:

    <!-- absent: name PATTERN -->                     no module, class, function, field, preset or recipe has this name
    <!-- absent: record RECIPE [key=value ...] -->    no kept record of such a recipe has these settings

PATTERN is a regular expression for whole words of a name. RECIPE, key and value may contain * and [...].
"""

import ast
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.records import records
from manyheads.models.presets import FAMILIES, PRESETS
from manyheads.runs.overrides import leaves
from manyheads.tasks.registry import RECIPES
from tests.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for folder in ("tutorials/source", "coming-from", "explanation", "how-to", "papers")
    for page in (DOCS / folder).glob("*.md")
    if page.stem != "index"
)
ABSENT = re.compile(
    r"\b(?:not|never)\s+(?:yet\s+)?(?:been\s+)?(?:measured|recorded|implemented|tried|here)\b|\bnot\s+tested\s+here\b"
    r"|\bdid\s+not\s+run\b|\bdoes\s+not\s+contain\b|\bWhat\s+is\s+missing\b|\bNot\s+implemented\b"
)
COMMENT = re.compile(r"^<!-- absent: (name|record) (.+) -->$", re.MULTILINE)

# for each comment, a name or the settings of a record that would come with the feature
FEATURES: dict[str, str | dict[str, Any]] = {
    "name (apply_)?chat_?template": "ChatTemplate",
    "name augmix": "AugMix",
    "name back_?translat(e|ion)": "backtranslation",
    "name convnext|swin": "ConvNeXt",
    "name deformable_?(attention|detr)": "DeformableAttention",
    "name device_?map": "device_map",
    "name expert_?parallel": "ExpertParallel",
    "name feature_?pyramid|features_only|fpn": "FeaturePyramid",
    "name fp16|half_?precision": "fp16",
    "name distilbert/base|distilbert_pretraining": "distilbert/base",
    "name gnmt_quantized|quantized_gnmt|quantized_lstm": "QuantizedLSTM",
    "name levenshtein": "LevenshteinTransformer",
    "name llama|pythia|neox": "LlamaConfig",
    "name local_?align(ment)?|luong_?local|predictive_?alignment": "LocalAlignment",
    "name maxout": "Maxout",
    "name multiple_?choice": "multiple-choice",
    "name multiplicative(_block)?": "MultiplicativeBlock",
    "name segmentation": "SegmentationTask",
    "name sparse_?auto_?encoder|sae": "SparseAutoencoder",
    "name speech|wav2vec2?|spectrogram": "SpeechEncoder",
    "name summari[sz]ation|summari[sz]er": "summarization",
    "name wandb": "wandb_logger",
    "record * data=*[iI]mage[nN]et*": {"recipe": "deit", "overrides": {"data": "/data/ImageNet"}},
    "record * preset=gpt3/*": {"recipe": "language-modeling", "overrides": {"preset": "gpt3/175b"}},
    "record * preset=local-attention/50*": {"recipe": "image", "overrides": {"preset": "local-attention/50-stem"}},
    "record *deit* teacher=*vit*": {"recipe": "cifar10/deit", "overrides": {"teacher": "runs/vit-teacher"}},
    "record detection/coco*": {"recipe": "detection/coco", "overrides": {"data": "coco"}},
    "record deit": {"recipe": "deit", "overrides": {}},
    "record imdb/* cell=gru": {"recipe": "imdb/rnn", "overrides": {"model.cell": "gru"}},
    "record imdb/gru*": {"recipe": "imdb/gru", "overrides": {}},
    "record language-modeling/capacity training.steps=8000": {
        "recipe": "language-modeling/capacity",
        "overrides": {"training.steps": 8000},
    },
    "record translation/wmt14*": {"recipe": "translation/wmt14-base", "overrides": {"data": "wmt14"}},
}


def paragraphs(page: Path) -> list[str]:
    """Return the paragraphs of a page, without code and generated tables."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^\|.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^<!-- results:begin -->.*?^<!-- results:end -->", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


@cache
def names() -> frozenset[str]:
    """Return the names of the package's modules, classes, functions, fields, presets, families and recipes."""
    found = {*RECIPES, *FAMILIES, *PRESETS}
    for file in (ROOT / "manyheads").rglob("*.py"):
        found.add(file.stem)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(found)


def named(pattern: str, given: Iterable[str]) -> list[str]:
    """Return the names in which the pattern occurs as one or several whole words, in any case."""
    words = re.compile(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])")
    snake = {
        name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).replace("-", "_") for name in given
    }
    return [name for name, parts in snake.items() if words.search(name.lower()) or words.search(parts.lower())]


def recorded(recipe: str, settings: list[str], given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of matching recipes in which every `key=value` matches some setting."""

    def has(record: dict[str, Any], setting: str) -> bool:
        key, _, value = setting.partition("=")
        return any(
            (fnmatch(name, key) or fnmatch(name.rpartition(".")[2], key)) and fnmatch(str(found), value)
            for name, found in leaves(record["overrides"])
        )

    return [r for r in given if fnmatch(r["recipe"], recipe) and all(has(r, setting) for setting in settings)]


def refutations(kind: str, rest: str, given: Iterable[Any]) -> list[Any]:
    """Return the names or records that refute a statement."""
    recipe, *settings = rest.split()
    return named(rest, given) if kind == "name" else recorded(recipe, settings, given)


COMMENTS = {f"{kind} {rest}" for page in PAGES for kind, rest in COMMENT.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_statement_of_absence_is_true_and_names_its_refutation(page: Path) -> None:
    for paragraph in paragraphs(page):
        claims = ABSENT.findall(re.sub(r"<!--.*?-->", "", paragraph, flags=re.DOTALL))
        comments = COMMENT.findall(paragraph)
        assert len(claims) <= len(comments), f'{page.name}: what refutes "{claims[0]}" in: {paragraph}'
        for kind, rest in comments:
            found = refutations(kind, rest, names() if kind == "name" else records())
            assert not found, f"{page.name}: {kind} {found[0]} exists, which refutes: {paragraph}"
    assert "absent: symbol" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("comment", sorted(COMMENTS))
def test_every_guard_fires_when_its_feature_arrives(comment: str) -> None:
    kind, _, rest = comment.partition(" ")
    feature = FEATURES[comment]
    assert refutations(kind, rest, [feature])
    other: Any = "Attention" if kind == "name" else {"recipe": "imdb/lstm", "overrides": {"model": {"width": 8}}}
    assert not refutations(kind, rest, [other])


def test_every_feature_has_a_guard() -> None:
    assert {*FEATURES} == COMMENTS


def test_names_are_matched_by_words_in_any_spelling() -> None:
    assert {"vit", "attend", "DiscussedModel"} & names() == {"vit", "attend"}
    assert named("detr", ["models.detr", "DetrForObjectDetection", "detr/r50", "detract"]) == [
        "models.detr",
        "DetrForObjectDetection",
        "detr/r50",
    ]
    assert named("image_?gpt", ["ImageGPTModel", "imagegpt", "image-encoder"]) == ["ImageGPTModel", "imagegpt"]
