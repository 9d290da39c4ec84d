"""Table of all presets: a name such as `bert/base-uncased` and the settings that differ from the defaults.

    config = preset("bert/tiny", vocab=1000)    # the preset with another vocabulary
    model = build(config)

The sizes follow the papers: published vocabularies, BERT with its pooler and without a head, image models with 1,000
classes. Looking up a name does not import torch; building a configuration or a model does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, TypeVar

from manyheads.core.config import MAX_PARAMETERS, Config, FieldError
from manyheads.errors import UserError, similar
from manyheads.models.convnet_presets import CONVNETS
from manyheads.models.text_presets import TEXT_PRESETS, Settings, named

FLOAT32 = 4  # number of bytes per parameter

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Family:
    """Type of model, such as BERT: the names of its model class and its configuration class, and of their module."""

    module: str
    config: str
    model: str
    paper: str

    def configuration(self) -> Any:
        return getattr(import_module(f"manyheads.models.{self.module}"), self.config)

    def model_class(self) -> Any:
        return getattr(import_module(f"manyheads.models.{self.module}"), self.model)


# names of the model families that translate
TRANSLATORS = ("transformer", "universal", "seq2seq-rnn", "rnn-attention", "gnmt", "deep-att", "convs2s", "bytenet")
# The keys are the first parts of preset names, such as "bert" in "bert/tiny". Some of the last families have no
# presets.
FAMILIES = {
    "transformer": Family("transformer", "TransformerConfig", "Transformer", "Vaswani 2017"),
    "universal": Family("universal", "UniversalConfig", "Universal", "Dehghani 2018"),
    "seq2seq-rnn": Family("seq2seq_rnn", "Seq2SeqRNNConfig", "Seq2SeqRNN", "Cho 2014, Sutskever 2014"),
    "rnn-attention": Family("rnn_attention", "RNNAttentionConfig", "RNNAttention", "Bahdanau 2015, Luong 2015"),
    "gnmt": Family("gnmt", "GNMTConfig", "GNMT", "Wu 2016, Shazeer 2017"),
    "deep-att": Family("deep_att", "DeepAttConfig", "DeepAtt", "Zhou 2016"),
    "convs2s": Family("convs2s", "ConvS2SConfig", "ConvS2S", "Gehring 2017"),
    "bytenet": Family("bytenet", "ByteNetConfig", "ByteNet", "Kalchbrenner 2016"),
    "bert": Family("bert", "BertConfig", "Bert", "Devlin 2018"),
    "roberta": Family("bert", "BertConfig", "Bert", "Liu 2019"),
    "text-classifier": Family("text_classifier", "TextClassifierConfig", "TextClassifier", "Chollet 2021"),
    "sequence-baseline": Family("sequence_baselines", "SequenceBaselineConfig", "SequenceBaseline", "Chollet 2021"),
    "tfidf": Family("tfidf", "TfidfConfig", "Tfidf", "Salton & Buckley 1988"),
    "gpt": Family("gpt", "GPTConfig", "GPT", "Radford 2018"),
    "gpt2": Family("gpt", "GPTConfig", "GPT", "Radford 2019"),
    "gpt3": Family("gpt", "GPTConfig", "GPT", "Brown 2020"),
    "igpt": Family("igpt", "IGPTConfig", "IGPT", "Chen 2020"),
    "vit": Family("vit", "ViTConfig", "ViT", "Dosovitskiy 2020"),
    "deit": Family("vit", "ViTConfig", "ViT", "Touvron 2021"),
    "resnet": Family("resnet", "ResNetConfig", "ResNet", "He 2015, Hu 2017"),
    "nonlocal": Family("nonlocal_net", "NonLocalConfig", "NonLocalNet", "Wang 2018"),
    "local-attention": Family("local_attention", "LocalAttentionConfig", "LocalAttentionNet", "Ramachandran 2019"),
    "conv-attention": Family("conv_attention", "ConvAttentionConfig", "ConvAttention", "Cordonnier 2020"),
    "efficientnet": Family("efficientnet", "EfficientNetConfig", "EfficientNet", "Tan & Le 2019"),
    "regnet": Family("regnet", "RegNetConfig", "RegNet", "Radosavovic 2020"),
    "bit": Family("bit", "BitConfig", "Bit", "Kolesnikov 2020"),
    "sknet": Family("selective_kernel", "SKNetConfig", "SKNet", "Li 2019"),
    "resnest": Family("split_attention", "ResNeStConfig", "ResNeSt", "Zhang 2020"),
    "gsa": Family("global_attention", "GSANetConfig", "GSANet", "Shen 2020"),
    "detr": Family("detr", "DetrConfig", "Detr", "Carion 2020"),
    "elmo": Family("elmo", "ElmoConfig", "Elmo", "Peters 2018"),
    "universal-sequence": Family("universal", "UniversalSequenceConfig", "UniversalSequence", "Dehghani 2018"),
    "bert-features": Family("bert_features", "BertFeaturesConfig", "BertFeatures", "Devlin 2018"),
    "directions": Family("directions", "DirectionalConfig", "DirectionalEncoder", "Devlin 2018"),
}
# names of the model families that process images
IMAGES = (
    "vit", "deit", "resnet", "nonlocal", "local-attention", "sknet", "resnest", "gsa", "conv-attention", "efficientnet",
    "regnet", "bit",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- image models


def _vit(size: tuple[int, int, int], patch: int, **more: object) -> Settings:
    width, layers, heads = size
    return {"width": width, "layers": layers, "heads": heads, "feed_forward": 4 * width, "patch": patch, **more}


_TI, _S, _B, _L, _H = (192, 12, 3), (384, 12, 6), (768, 12, 12), (1024, 24, 16), (1280, 32, 16)
_TEN = tuple("0123456789")
# Initialization with which small models train faster. After 100 steps on images of digits, vit/2-8 has an accuracy of
# 0.56. With a position_std of 0.02 the accuracy is 0.29; if the matrices are initialized as in DeiT, too, it is 0.13.
_FAST_START: Settings = {"init": "xavier", "position_std": 0.5}
_CIFAR: Settings = {"labels": _TEN, "image_size": 32, **_FAST_START}
_VIT: dict[str, Settings] = {
    # sizes from Dosovitskiy 2020, table 1; Ti and S are from Touvron 2021, table 1
    **{
        f"vit/{name}{patch}": _vit(size, patch)
        for name, size in (("ti", _TI), ("s", _S), ("b", _B), ("l", _L))
        for patch in (16, 32)
    },
    "vit/h14": _vit(_H, 14, labels=()),  # the published weights have no classification head
    **{
        f"deit/{name}16": _vit(size, 16, distilled=True, stochastic_depth=0.1)  # DeiT, table 9
        for name, size in (("ti", _TI), ("s", _S), ("b", _B))
    },
    # Models for small images: the sizes of ViT for 32 x 32 pixels, and smaller sizes for training on a CPU. xs4-32 is
    # the ViT of Lee et al. 2021.
    "vit/ti4-32": _vit(_TI, 4, **_CIFAR),
    "vit/s4-32": _vit(_S, 4, **_CIFAR),
    "vit/b4-32": _vit(_B, 4, **_CIFAR),
    "vit/xs4-32": {**_vit((192, 9, 12), 4, **_CIFAR), "feed_forward": 384},
    "vit/7-28": _vit((64, 6, 4), 7, labels=_TEN, image_size=28, channels=1, **_FAST_START),
    "vit/2-8": _vit((64, 4, 4), 2, labels=_TEN, image_size=8, channels=1, **_FAST_START),
}


def _basic(*depths: int, **more: object) -> Settings:
    return {"block": "basic", "depths": depths, "widths": (64, 128, 256, 512), **more}


def _bottleneck(*depths: int, **more: object) -> Settings:
    return {"block": "bottleneck", "depths": depths, "widths": (256, 512, 1024, 2048), **more}


_SMALL: Settings = {"stem": "3x3", "image_size": 32}  # settings of a ResNet for images of 32 x 32 pixels
_RESNET: dict[str, Settings] = {
    "18": _basic(2, 2, 2, 2),  # sizes of ResNet-18 and 34 from He 2015, table 1
    "34": _basic(3, 4, 6, 3),
    "26": _bottleneck(1, 2, 4, 1),  # sizes of ResNet-26 and 38 from Ramachandran 2019, section 4.1
    "38": _bottleneck(2, 3, 5, 2),
    "50": _bottleneck(3, 4, 6, 3),
    "101": _bottleneck(3, 4, 23, 3),
    "152": _bottleneck(3, 8, 36, 3),
    "18-small": _basic(2, 2, 2, 2, **_SMALL),
    "26-small": _bottleneck(1, 2, 4, 1, **_SMALL),
    # size of ResNet-20 for CIFAR-10 from He 2015, section 4.2
    "20-small": _basic(3, 3, 3, **_SMALL) | {"widths": (16, 32, 64), "stem_width": 16},
}
_LOCAL: dict[str, Settings] = {
    **{name: _RESNET[name] for name in ("26", "38", "50")},
    **{name: {**_RESNET[name], "stem_window": 2} for name in ("18-small", "26-small")},
}
# a model for scenes of digits: the ResNet reduces 128 x 128 pixels to 8 x 8 cells
_DETR_DIGITS: Settings = {
    "labels": _TEN, "image_size": 128, "channels": 1, "block": "basic", "depths": (1, 1, 1), "widths": (32, 64, 128),
    "stem_width": 32, "width": 128, "queries": 25, "anchors": True, "dense": True, "temperature": 20.0, "dropout": 0.0,
    "encoder_layers": 2, "encoder_heads": 4, "encoder_feed_forward": 256,
    "decoder_layers": 3, "decoder_heads": 4, "decoder_feed_forward": 256,
}  # fmt: skip
_KINDS = ("quadratic", "relative", "content")  # kinds of attention layers in conv_attention.py

PRESETS: dict[str, Settings] = {
    **TEXT_PRESETS,
    **_VIT,
    **named("resnet", _RESNET),
    **named("resnet", {f"{name}-se": {**settings, "squeeze": 16} for name, settings in _RESNET.items()}),
    **{
        f"{family}/{name}": _RESNET[name]
        for family in ("nonlocal", "sknet", "resnest", "gsa")
        for name in ("50", "101", "18-small", "26-small", "20-small")
    },
    "resnest/101": {**_RESNET["101"], "stem_width": 128},
    **named("local-attention", _LOCAL),
    # The stem of these networks is a convolution, as in the paper's best models.
    **named("local-attention", {f"{name}-stem": {**s, "front": "convolution"} for name, s in _LOCAL.items()}),
    **CONVNETS,
    "igpt/s": {},  # sizes of the published weights of Chen 2020, for images of 32 x 32 pixels
    "igpt/m": {"layers": 36, "width": 1024},
    "igpt/l": {"layers": 48, "width": 1536, "heads": 16},
    "igpt/digits": {"layers": 4, "width": 128, "heads": 4},  # a model for small images on a CPU
    "detr/r50": {},
    "detr/r101": {"depths": (3, 4, 23, 3)},
    "detr/digits": _DETR_DIGITS,
    # models with the sizes that the papers give
    **named("conv-attention", {kind: {"kind": kind} for kind in _KINDS}),
    **named("conv-attention", {f"{k}-small": {"kind": k, "width": 96, "feed_forward": 192} for k in _KINDS}),
}


def full_name(name: str, *families: str) -> str:
    """Return the full name of a preset, such as `bert/tiny`, for a name that may be abbreviated.

    Raises UserError for an unknown name.

    families  model families whose presets may be abbreviated. If none are given, only full names are valid. An
              abbreviation is the size, such as `tiny`, or the first word of the family and the size. For example,
              `universal/tiny` means universal-sequence/tiny if this is one of the families
    """
    names = [full for full in PRESETS if not families or family_of(full) in families]
    word, _, size = name.partition("/")
    short = [f"{family}/{name}" for family in families]
    for full in (name, *short, *(f"{family}/{size}" for family in families if family.partition("-")[0] == word)):
        if full in names:
            return full
    if name in PRESETS:
        raise UserError(f"the preset {name!r} does not fit this task: expected one of {', '.join(families)}")
    raise UserError(f"unknown preset {name!r}: {suggest_name(name, names)}")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown preset: the most similar preset, or an example."""
    names = list(names)
    short = {size: full for full in names if (size := full.partition("/")[2])}
    if close := similar(name, names) or short.get(similar(name, short)):
        return f"did you mean {close}? `manyheads summary` lists all presets"
    return f"expected a name such as {names[0]}; `manyheads summary` lists all presets"


def family_of(name: str) -> str:
    return name.partition("/")[0]


def preset(name: str, *families: str, **settings: object) -> Any:
    """Return the configuration of a preset. `settings` override the values of the preset.

    The name may be abbreviated as for `full_name`.

        >>> config = manyheads.preset("gpt2/nano", layers=2)
        >>> config.layers
        2
    """
    name = full_name(name, *families)
    return make_config(FAMILIES[family_of(name)].configuration(), settings, {}, base=PRESETS[name])


def preset_for_data(name: str, families: Sequence[str], settings: Settings, decided: Settings) -> Any:
    """Return the configuration of a preset for a given data set.

    settings  settings of the user
    decided   values that the data or the task determine, such as the size of a learned vocabulary. The user cannot set
              these values: raises UserError if `settings` contains one of them.
    """
    name = full_name(name, *families)
    try:
        return make_config(FAMILIES[family_of(name)].configuration(), settings, decided, base=PRESETS[name])
    except FieldError as error:  # Name the field as the user sets it in a recipe: model.NAME.
        raise UserError(f"model.{error}") from None


def make_config(kind: type[C], settings: Settings, decided: Settings, *, base: Settings | None = None) -> C:
    """Return a configuration of the given class from preset values (`base`), `settings` and `decided` values.

    The last two are the arguments of `preset_for_data`.
    """
    known = {f.name for f in fields(kind)}
    if unknown := sorted(settings.keys() - known):
        valid = sorted(known - decided.keys())
        raise UserError(f"unknown settings {', '.join(unknown)}: expected some of {', '.join(valid)}")
    if conflicts := sorted(settings.keys() & decided.keys()):
        raise UserError(
            f"cannot set {', '.join(conflicts)}: the data and the task determine these; remove them (the size of a "
            "vocabulary is the setting `vocabulary` of the recipe)"
        )
    return kind(**{**(base or {}), **settings, **decided})


def build(config: Config) -> Any:
    """Return the model of a configuration of any family.

    Raises UserError before memory is allocated if the model is too large: if parameters and position tables have more
    than `MAX_PARAMETERS` numbers, or do not fit into the memory of this machine.

        >>> model = manyheads.build(manyheads.preset("bert/tiny", vocab=100))
        >>> type(model).__name__
        'Bert'
    """
    import torch

    from manyheads.core.runtime import physical_memory

    model = next(row for row in FAMILIES.values() if row.config == type(config).__name__).model_class()
    with torch.device("meta"):
        sized = model(config)
        parameters, buffers = (sum(t.numel() for t in kind) for kind in (sized.parameters(), sized.buffers()))
    max_numbers = MAX_PARAMETERS
    if torch.get_default_device().type != "meta":
        max_numbers = min(max_numbers, physical_memory() // FLOAT32)
    if parameters + buffers > max_numbers:
        positions = f" and {buffers:,} other numbers, such as position tables" * (buffers > 0)
        raise UserError(
            f"the model would have {parameters:,} parameters{positions}: expected at most {max_numbers:,}; "
            "choose smaller sizes"
        )
    return model(config)
