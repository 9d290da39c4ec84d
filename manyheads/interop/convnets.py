"""Parts of the file formats of convolutional networks, which transformers and timm have for many networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from manyheads.core.interface import Model
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop import timm
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL, architecture
from manyheads.interop.labels import TargetRow, label_names, read_labels, read_target
from manyheads.interop.table import Setting, SettingRow, Settings, Weight
from manyheads.models.resnet import ConvNetConfig

N = TypeVar("N", bound=ConvNetConfig)
Rows = Callable[[N, Iterable[str]], list[Weight]]
Names = Mapping[str, tuple[str, str]]
BLOCK = "stages.{}.blocks.{}"
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# keys for use as a backbone in another model
_BACKBONE = {"_out_features", "_out_indices", "out_features", "out_indices", "stage_names"}
# model arguments of timm that follow from the weights, or that matter only in training
_FREE = ["block", "layers", "channels", "in_chans", "num_classes", "drop_rate", "drop_path_rate", "zero_init_last"]
_FIXED = {"global_pool": "avg", "block_args": {"attn_layer": "se"}}


def normed(names: Names, ours: str = "", theirs: str = "") -> list[Weight]:
    """Return the rows of a conversion table for convolutions that have a batch norm and no bias.

    names         mapping from the name of each `NormalizedLayer` in Manyheads to the names of its convolution and its
                  batch norm in files
    ours, theirs  beginnings of all names
    """
    rows = []
    for name, (convolution, norm) in names.items():
        rows.append(Weight(f"{ours}{name}.mixer.weight", f"{theirs}{convolution}.weight"))
        rows += [Weight(f"{ours}{name}.norm.{leaf}", f"{theirs}{norm}.{leaf}") for leaf in _BATCH_NORM]
    return rows


def pointwise(ours: str, theirs: str) -> list[Weight]:
    """Return the rows of a conversion table for a linear layer that is a 1 x 1 convolution in files."""
    return [
        Weight(f"{ours}.bias", f"{theirs}.bias"),
        Weight(f"{ours}.weight", f"{theirs}.weight",
               to_theirs=lambda t: t[..., None, None], to_ours=lambda t: t.flatten(1)),
    ]  # fmt: skip


def squeezing(block: str, squeeze: str, excite: str) -> list[Weight]:
    """Return the rows of a conversion table for the squeeze-and-excitation of a block, from the names in files."""
    return pointwise(f"{block}.squeeze.squeeze", squeeze) + pointwise(f"{block}.squeeze.excite", excite)


def sizes(stem_width: int, widths: tuple[int, ...], depths: tuple[int, ...]) -> tuple[Setting, ...]:
    """Return the rows of a conversion table for the sizes of the stem and of the stages, with their defaults."""
    return (
        Setting("stem_width", "embedding_size", default=stem_width),
        Setting("widths", "hidden_sizes", default=widths),
        Setting("depths", "depths", default=depths),
    )


def transformers_family(
    name: str, config: type[N], module: type[Model[N]], rows: Sequence[SettingRow], weights: Rows[N],
    *, theirs_only: JsonMapping, ours_only: JsonMapping | None = None, ignored: Iterable[str] = (),
    image_size: int = 224, also_written: Callable[[N], JsonObject] = lambda config: {},
) -> Family[N]:  # fmt: skip
    """Return the format in transformers of a network that has a model without a head, and an image classifier.

    name          name of the network in transformers, such as ResNet
    rows          settings of the network, in addition to the number of color channels and the image size
    image_size    image size if config.json has none
    also_written  function that returns keys that are written to config.json only for other tools

    The other arguments are those of `Family` and `Settings`.
    """
    heads = f"{name}Model", f"{name}ForImageClassification"

    def infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        labels = read_labels(settings) if architecture(settings, heads) == heads[1] else ()
        return {"labels": labels, "target": read_target(settings, labels) if labels else "classes"}

    return Family(
        name.lower(), config, module,
        Settings(
            (Setting("channels", "num_channels", default=3), Setting("image_size", "image_size", default=image_size),
             *rows, TargetRow()),
            ours_only=ours_only or {}, theirs_only=theirs_only, tolerated=ABSENT,
            ignored=ANY_MODEL | _BACKBONE | set(ignored),
        ),
        weights,
        architecture=lambda config: heads[bool(config.labels)],
        infer=infer,
        also_written=lambda config: also_written(config) | (label_names(config.labels) if config.labels else {}),
    )  # fmt: skip


def timm_family(
    names: str, known: str, like: Family[N], *, weights: Rows[N], stem: str, classifier: str,
    infer: Callable[[str, Mapping[str, Tensor]], JsonObject], renamed: Callable[[str], str] = str,
) -> Family[N]:  # fmt: skip
    """Return the format of a network in timm. Models are read in this format, but never written.

    names             regular expression for the supported values of the key `architecture`, without a tag
    known             description of these values for an error message
    like              format of the network in transformers
    weights, renamed  see `Family`
    stem, classifier  names of the weights of the first convolution and of the classifier
    infer             function of the value of `architecture` and of the tensors that returns all other settings
    """

    def inferred(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        name, first = str(settings.get("architecture")).partition(".")[0], tensors.get(stem)
        if not re.fullmatch(names, name):
            raise UserError(f"'architecture' is {settings.get('architecture')!r}; expected {known}")
        timm.arguments(settings, _FREE, _FIXED)
        if first is None or first.dim() != 4:
            raise UserError(f"expected {stem} in the shape of a convolution")
        labels = timm.labels(settings, tensors.get(classifier))
        return {"labels": labels, "channels": first.shape[1], **infer(name, tensors)}

    return Family(
        f"timm-{like.model_type}", like.config, like.module,
        Settings((), ours_only={}, theirs_only={}, tolerated={"global_pool": "avg"}, ignored=timm.IGNORED),
        weights,
        architecture=like.architecture,
        infer=inferred,
        preprocessing=timm.preprocessing,
        renamed=renamed,
    )  # fmt: skip


def stages(tensors: Mapping[str, Tensor], stem: str, last: str) -> JsonObject:
    """Return the settings `stem_width`, `widths` and `depths` of a network in timm, from its tensors.

    stem  name of the weight of the first convolution
    last  name of a tensor in each block that has one value, or one row, for each output channel of the block
    """
    found: dict[int, list[int]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r".*stages\.(\d+)\.\w+\.\d+\." + re.escape(last), name)
        if match and tensor.dim():
            found.setdefault(int(match[1]), []).append(len(tensor))
    if not found or set(found) != set(range(len(found))):
        raise UserError("expected the tensors of the blocks of each stage, from the first")
    widths = [found[stage] for stage in range(len(found))]
    return {
        "stem_width": len(tensors[stem]), "depths": tuple(map(len, widths)), "widths": tuple(each[0] for each in widths)
    }  # fmt: skip
