"""Read and write DETR in the format of `transformers`, with a ResNet as backbone.

Based on transformers 5.23 (modeling_detr.py; conversion_mapping.py, which preserves older names in files). The backbone
of the published models is a ResNet of timm, whose names in the file differ. A DETR with local attention, or with a stem
for small images, is saved in the format of Manyheads (interop/own.py).

In transformers, the batch norms of a DETR are always frozen. A key `frozen_norms` in config.json, which other tools
preserve, says whether they are frozen when Manyheads trains the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_MODEL, activation, architecture
from manyheads.interop.labels import label_names, read_labels
from manyheads.interop.resnet import RESNET, backbone_rows, from_timm
from manyheads.interop.table import Setting, Settings, Weight, weights_and_biases
from manyheads.models.detr import Detr, DetrConfig
from manyheads.models.presets import PRESETS

_NAME = "DetrForObjectDetection"
_BACKBONE = "model.backbone.conv_encoder.model."
_SUBLAYERS = {
    "attention_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward.expand": "fc1",
    "feed_forward.contract": "fc2",
    "feed_forward_norm": "final_layer_norm",
    **{
        f"{ours}.{part}": f"{theirs}.{name}_proj"
        for ours, theirs in (("attention", "self_attn"), ("cross", "encoder_attn"))
        for part, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out"))
    },
}
_LAYERS = {
    "reduce": "model.input_projection",
    "decoder.norm": "model.decoder.layernorm",
    "classifier": "class_labels_classifier",
    "box.{}": "bbox_predictor.layers.{}",
    **{
        f"{side}.blocks.{{}}.{ours}": f"model.{side}.layers.{{}}.{theirs}"
        for side in ("encoder", "decoder")
        for ours, theirs in _SUBLAYERS.items()
    },
}


def _weights(config: DetrConfig, names: Iterable[str]) -> list[Weight]:
    return [
        Weight("queries", "model.query_position_embeddings.weight"),
        *(Weight(f"backbone.{row.ours}", _BACKBONE + row.theirs) for row in backbone_rows()),
        *weights_and_biases(_LAYERS),
    ]


class _Backbone:
    """Row of a conversion table for the settings of the ResNet."""

    keys = ("backbone_config", "backbone", "use_timm_backbone", "use_pretrained_backbone", "backbone_kwargs")
    rows = tuple(row for row in RESNET.settings.rows if not {"problem_type", "image_size"} & set(row.keys))

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        nested = theirs.get("backbone_config") or {}
        if nested.get("model_type") == "resnet":
            return {name: value for row in self.rows for name, value in row.to_ours(nested).items()}
        name = nested.get("backbone") or theirs.get("backbone")
        sizes = PRESETS.get(str(name).replace("resnet", "resnet/"))
        if sizes is None:
            raise UserError(
                f"the backbone is {name or nested.get('model_type')!r}; expected a ResNet, such as resnet50"
            )
        return {"channels": theirs.get("num_channels", 3), **sizes}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        settings = {key: value for row in self.rows for key, value in row.to_theirs(ours).items()}
        last = f"stage{len(ours['depths'])}"
        return {"backbone_config": {"model_type": "resnet", "out_features": [last], **settings}}


_SIDES = tuple(
    Setting(f"{side}_{ours}", f"{side}_{theirs}", default=default)
    for side in ("encoder", "decoder")
    for ours, theirs, default in (
        ("layers", "layers", 6), ("heads", "attention_heads", 8), ("feed_forward", "ffn_dim", 2048)
    )
)  # fmt: skip
# keys for the losses of training, for initialization and for masks, which do not change a detector's output
_IGNORED = """
    auxiliary_loss bbox_cost bbox_loss_coefficient class_cost decoder_layerdrop dice_loss_coefficient encoder_layerdrop
    eos_coefficient giou_cost giou_loss_coefficient init_std init_xavier_std is_encoder_decoder mask_loss_coefficient
    max_position_embeddings num_hidden_layers scale_embedding classifier_dropout
"""


def _infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    architecture(settings, [_NAME])
    return {"labels": read_labels(settings)}


def _from_timm(name: str) -> str:
    """Convert the name of a tensor of timm's ResNet, after the prefix of the backbone, to the name in transformers."""
    inner = name.removeprefix(_BACKBONE)
    return name if inner == name else _BACKBONE + from_timm(inner).removeprefix("resnet.")


def _counters(config: DetrConfig) -> Mapping[str, None]:
    """Return the counters of batches that the files of the published models contain, without an effect."""
    names = (f"encoder.stages.{stage}.layers.0.shortcut" for stage in range(len(config.depths)))
    frozen = config.frozen_norms
    return {f"{_BACKBONE}{name}.normalization.num_batches_tracked": None for name in names if frozen}


DETR = Family(
    "detr", DetrConfig, Detr,
    Settings(
        (
            _Backbone(),
            *_SIDES,
            activation("activation_function", default="relu"),
            Setting("width", "d_model", default=256),
            Setting("queries", "num_queries", default=100),
            Setting("dropout", "dropout", default=0.1),
            Setting("attention_dropout", "attention_dropout", default=0.0),
            Setting("activation_dropout", "activation_dropout", default=0.0),
            Setting("image_size", "image_size", default=1333),  # only Manyheads writes this key and the next
            Setting("frozen_norms", "frozen_norms", default=True),
        ),
        ours_only={
            "attends": (), "front": "convolution", "stem": "7x7", "squeeze": None, "anchors": False, "dense": False,
            "groups": 1, "temperature": 10_000.0, "target": "classes",
            # settings of local attention, without effect here
            "heads": 8, "window": 7, "stem_window": 4, "mixtures": 4, "query_block": 4,
        },
        theirs_only={"position_embedding_type": "sine", "dilation": False},
        tolerated={key: value for key, value in ABSENT.items() if key != "is_encoder_decoder"},
        ignored=ANY_MODEL | set(_IGNORED.split()) | {"num_channels"},
    ),
    _weights,
    architecture=lambda config: _NAME,
    infer=_infer,
    computed=_counters,
    also_written=lambda config: label_names(config.labels),
    renamed=_from_timm,
)  # fmt: skip
