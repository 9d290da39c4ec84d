"""What can be trained: an explicit table of recipes, and `train`, which runs one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from manyheads.recipes.overrides import Setting, apply, as_dict, from_file, from_mapping, nearest
from manyheads.recipes.run import Run


@dataclass(frozen=True)
class Recipe:
    """A run that the project vouches for.

    function  "module:function" with the signature `function(config: SomeDataclass, run: Run) -> report`; the config it
              starts from is the default of its parameter `config`, or else the dataclass with all its defaults
    needs     what the user must bring
    """

    function: str
    paper: str
    summary: str
    needs: str = "nothing"

    def load(self) -> tuple[Callable[..., Any], Any]:
        """The function and the config it starts from."""
        module, name = self.function.split(":")
        function = getattr(import_module(module), name)
        default = inspect.signature(function).parameters["config"].default
        if default is inspect.Parameter.empty:
            default = get_type_hints(function)["config"]()
        assert is_dataclass(default)
        return function, default

    def planned_model(self) -> Any:
        """The model that it trains, without memory: its module's `planned_model(config)`."""
        function, default = self.load()
        planned = getattr(import_module(function.__module__), "planned_model", None)
        if planned is None:
            raise ValueError("this recipe trains several models, or starts from another one: name that model")
        return planned(default)


_VASWANI = "Vaswani et al. 2017"
_DEVLIN = "Devlin et al. 2018"
_CHOLLET = "Chollet 2021"
_IMDB = "data=DIR: train and test of IMDB, with the columns text and label"
_GPT2 = "Radford et al. 2019"
_TRANSLATION = "manyheads.tasks.translation.run:"
_LANGUAGE = "manyheads.tasks.language.run:"
_CLASSIFICATION = "manyheads.tasks.classification.run:"
_TAGGING = "manyheads.tasks.tagging.run:"
_ANSWERING = "manyheads.tasks.answering.run:"
_BERT = "manyheads.tasks.masked_words.run:"
_IMAGES = "manyheads.tasks.images.run:"
_UNIVERSAL = "manyheads.tasks.digits.run:"
_DEHGHANI = "Dehghani et al. 2018"
_CIFAR10 = "data=DIR: train and test of CIFAR-10, with the columns image and label"

RECIPES: dict[str, Recipe] = {
    "translation": Recipe(
        _TRANSLATION + "translation", _VASWANI, "a small translator of dates, amounts and names, any two locales"
    ),
    "translation/multi30k": Recipe(
        _TRANSLATION + "multi30k", "Wu et al. 2021", "a 2.6 M parameter translator of image captions",
        "data=DIR: train, val and test_2016_flickr of Multi30k",
    ),
    "translation/wmt14-base": Recipe(
        _TRANSLATION + "wmt14_base", _VASWANI, "the paper's base model, 100,000 steps", "data=DIR: WMT14 training files"
    ),
    "translation/wmt14-big": Recipe(
        _TRANSLATION + "wmt14_big", _VASWANI, "the paper's big model, 300,000 steps", "data=DIR: WMT14 training files"
    ),
    "translation/ablate": Recipe(
        "manyheads.tasks.translation.ablation:ablate", _VASWANI,
        "the rows of the paper's table 3 at a small budget, on any corpus",
    ),
    "bert/pretraining": Recipe(
        _BERT + "pretraining", _DEVLIN, "a tiny BERT on the standard library's documentation, or any BERT on your text"
    ),
    "bert/imdb": Recipe(
        _BERT + "imdb", _DEVLIN, "a small BERT on film reviews, to start classifiers from",
        "data=PATH: IMDB's unsupervised.parquet",
    ),
    "bert/imdb-1000": Recipe(
        "manyheads.tasks.classification.few_labels:imdb_1000", _DEVLIN,
        "what that is worth: its fine-tuning on 1,000 labelled reviews, or scratch=true",
        "data=DIR: train and test of IMDB, and --init RUN of bert/imdb",
    ),
    "reading": Recipe(
        "manyheads.tasks.directions.run:reading", _DEVLIN,
        "the paper's figure 3: both directions at once, left to right, two LSTMs, compared by their features",
    ),
    "text-classification": Recipe(
        _CLASSIFICATION + "text_classification", _CHOLLET, "which of 60 languages is a phrase in, or your labels"
    ),
    "text-classification/receptive-field": Recipe(
        "manyheads.tasks.classification.receptive_field:receptive_field", _CHOLLET,
        "nothing: how far stacked convolutions see, and attention, measured by gradient",
    ),
    "imdb/textbook": Recipe(
        _CLASSIFICATION + "imdb_textbook", _CHOLLET, "the textbook's classifier as published", _IMDB
    ),
    "imdb/corrected": Recipe(
        _CLASSIFICATION + "imdb_corrected", _CHOLLET, "the textbook's classifier with positions and a mask", _IMDB
    ),
    "imdb/rnn": Recipe(
        _CLASSIFICATION + "imdb_rnn", _CHOLLET, "a plain recurrent network instead", _IMDB
    ),
    "imdb/lstm": Recipe(
        _CLASSIFICATION + "imdb_lstm", _CHOLLET, "an LSTM instead", _IMDB
    ),
    "imdb/bilstm": Recipe(
        _CLASSIFICATION + "imdb_bilstm", _CHOLLET, "an LSTM in both directions instead", _IMDB
    ),
    "imdb/conv1d": Recipe(
        _CLASSIFICATION + "imdb_conv1d", _CHOLLET, "convolutions along the words instead", _IMDB
    ),
    "imdb/conv2d": Recipe(
        _CLASSIFICATION + "imdb_conv2d", _CHOLLET, "convolutions along words and features instead", _IMDB
    ),
    "imdb/tfidf": Recipe(
        _CLASSIFICATION + "imdb_tfidf", _CHOLLET, "TF-IDF and logistic regression instead", _IMDB
    ),
    "sst2": Recipe(
        _CLASSIFICATION + "sst2", _DEVLIN, "the sentiment of sentences, fine-tuned from any BERT",
        "data=DIR: train, dev and test of SST-2, and --init MODEL",
    ),
    "mrpc": Recipe(
        _CLASSIFICATION + "mrpc", _DEVLIN, "whether two sentences say the same, fine-tuned from any BERT",
        "data=DIR: train and test of MRPC, and --init MODEL",
    ),
    "single-sentence": Recipe(
        _CLASSIFICATION + "single_sentence", _DEVLIN, "labels of your texts, fine-tuned from any BERT",
        "data=DIR: train.tsv with the columns text and label, and --init MODEL",
    ),
    "sentence-pair": Recipe(
        _CLASSIFICATION + "sentence_pair", _DEVLIN, "labels of your pairs of texts, fine-tuned from any BERT",
        "data=DIR: train.tsv with the columns sentence1, sentence2 and label, and --init MODEL",
    ),
    "tagging": Recipe(
        _TAGGING + "tagging", _DEVLIN, "a small tagger of dates, times, amounts, places and languages, or of your tags"
    ),
    "conll2003": Recipe(
        _TAGGING + "conll2003", _DEVLIN, "named entities, fine-tuned from any BERT",
        "data=DIR: train, valid and test of CoNLL-2003, and --init MODEL",
    ),
    "question-answering": Recipe(
        _ANSWERING + "question_answering", _DEVLIN, "answers as spans of a text, fine-tuned from any BERT",
        "data=DIR: train and dev or test files as SQuAD's JSON, and --init MODEL",
    ),
    "xquad": Recipe(
        _ANSWERING + "xquad", "Artetxe et al. 2020", "what a thousand questions teach, fine-tuned from any BERT",
        "data=DIR: train.json and test.json of XQuAD, and --init MODEL",
    ),
    "language-modelling": Recipe(
        _LANGUAGE + "language_modelling", _GPT2, "a small language model of Python's source text, or of your texts"
    ),
    "language-modelling/tiny-shakespeare": Recipe(
        _LANGUAGE + "tiny_shakespeare", "Karpathy 2022, nanoGPT", "a 0.8 M parameter character model, for a CPU",
        "data=FILE: tiny-shakespeare's input.txt",
    ),
    "language-modelling/tiny-shakespeare-gpu": Recipe(
        _LANGUAGE + "tiny_shakespeare_gpu", "Karpathy 2022, nanoGPT", "a 10.7 M parameter character model, for a GPU",
        "data=FILE: tiny-shakespeare's input.txt",
    ),
    "conv-attention/theorem": Recipe(
        "manyheads.tasks.images.theorem:theorem", "Cordonnier et al. 2020",
        "nothing: how exactly attention computes 3 x 3, 5 x 5 and 7 x 7 convolutions, by its sharpness",
    ),
    "image-classification": Recipe(
        _IMAGES + "image_classification", "Dosovitskiy et al. 2020",
        "a small ViT of handwritten digits, or of your images",
    ),
    "mnist/vit": Recipe(
        _IMAGES + "mnist_vit", "Dosovitskiy et al. 2020", "a small ViT on MNIST",
        "data=DIR: train and test of MNIST, with the columns image and label, or as IDX files",
    ),
    "cifar10/resnet": Recipe(
        _IMAGES + "cifar10_resnet", "He et al. 2015", "a small ResNet, also as a teacher", _CIFAR10
    ),
    "cifar10/vit": Recipe(_IMAGES + "cifar10_vit", "Dosovitskiy et al. 2020", "a small ViT", _CIFAR10),
    "cifar10/deit": Recipe(
        _IMAGES + "cifar10_deit", "Touvron et al. 2021", "the same with a distillation token",
        f"{_CIFAR10}; teacher=RUN",
    ),
    "cifar10/se": Recipe(_IMAGES + "cifar10_se", "Hu et al. 2017", "the ResNet with squeeze-and-excitation", _CIFAR10),
    "cifar10/nonlocal": Recipe(
        _IMAGES + "cifar10_nonlocal", "Wang et al. 2018", "the ResNet with non-local blocks", _CIFAR10
    ),
    "cifar10/local-attention": Recipe(
        _IMAGES + "cifar10_local", "Ramachandran et al. 2019", "local attention instead of convolutions", _CIFAR10
    ),
    "cifar10/conv-attention": Recipe(
        _IMAGES + "cifar10_conv", "Cordonnier et al. 2020", "attention that can be a convolution", _CIFAR10
    ),
    "universal/copy": Recipe(
        _UNIVERSAL + "copy", _DEHGHANI, "digits copied, ten times as many as in training; or by a Transformer, an LSTM"
    ),
    "universal/reverse": Recipe(_UNIVERSAL + "reverse", _DEHGHANI, "digits reversed, likewise"),
    "universal/addition": Recipe(_UNIVERSAL + "addition", _DEHGHANI, "numbers added, likewise"),
    "deit": Recipe(
        _IMAGES + "deit", "Touvron et al. 2021", "the paper's whole recipe, for ImageNet",
        "data=DIR: train and val of ImageNet, a folder for each class",
    ),
}  # fmt: skip


EMBEDDED_ONLY = {"locale", "size"}  # settings of the corpora that need no data


def find(name: str) -> Recipe:
    """The recipe of that name, or a ValueError with the nearest one."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def train(
    recipe: str,
    overrides: Mapping[str, Any] | list[Setting] | None = None,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    init: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    max_minutes: float | None = None,
    precision: str | None = None,
    skip_bad_lines: bool = False,
    compile: bool = False,
) -> Any:
    """Run a recipe and return its report: of a finished run the content of its `result.json`.

    `overrides` by dotted key, such as {"training.steps": 100}, win over the YAML file `config`. `out` is
    `runs/RECIPE` unless given. Raises ValueError on anything the user can put right.
    """
    function, default = find(recipe).load()
    if out is not None and not str(out):
        raise ValueError("out is empty: give a directory, or leave it out for runs/RECIPE")
    settings = from_file(config) if config else []
    settings += overrides if isinstance(overrides, list) else from_mapping(overrides or {})
    resolved = _one_budget(apply(default, settings), {setting.key for setting in settings})
    run = Run(
        recipe, Path(f"runs/{recipe}" if out is None else out), init, resume, dry_run, max_minutes, precision,
        skip_bad_lines, compile, overrides=_changed(as_dict(default), as_dict(resolved)),
    )  # fmt: skip
    _check(resolved, run)
    return function(resolved, run=run)


def _one_budget(config: Any, given: set[str]) -> Any:
    """Of steps and epochs, what is given alone replaces the recipe's other, which would end the run sooner or later."""
    for given_one, other in (("steps", "epochs"), ("epochs", "steps")):
        alone = f"training.{given_one}" in given and f"training.{other}" not in given
        if alone and getattr(config.training, given_one) is not None:
            config = replace(config, training=replace(config.training, **{other: None}))
    return config


def _check(config: Any, run: Run) -> None:
    """Raises a ValueError for what no recipe can use."""
    for name in ("batch_tokens", "threads"):
        if (value := getattr(config, name, None)) is not None and value < 1:
            raise ValueError(f"{name} is {value}: expected 1 or more")
    data = getattr(config, "data", None)
    first = None if data is None else Path(data.split(",")[0])  # two files may be named, or what their names begin with
    if run.dry_run and first is not None and not any(first.parent.glob(f"{escape(first.name)}*")):
        raise ValueError(f"data={data}: no such file or directory")
    if data is not None and (idle := EMBEDDED_ONLY & run.overrides.keys()):
        raise ValueError(f"{', '.join(sorted(idle))}: of the embedded corpus, and data are given: leave it out")


def _changed(before: Any, after: Any, prefix: str = "") -> dict[str, Any]:
    """What differs, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in after.items():
        if isinstance(value, dict):
            found |= _changed(before.get(key) or {}, value, f"{prefix}{key}.")
        elif key not in before or before[key] != value:
            found[prefix + key] = value
    return found
