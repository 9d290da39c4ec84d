"""Tables of all file formats of models."""

from __future__ import annotations

from manyheads.interop.bert import BERT, DISTILBERT, MEGATRON_BERT, ROBERTA, XLM_ROBERTA
from manyheads.interop.bit import BIT, TIMM_BIT
from manyheads.interop.clip import CLIP, CLIP_VISION
from manyheads.interop.detr import DETR
from manyheads.interop.dinov2 import DINOV2, DINOV2_REGISTERS
from manyheads.interop.efficientnet import EFFICIENTNET, TIMM_EFFICIENTNET
from manyheads.interop.encoder_decoder import MARIAN, PEGASUS
from manyheads.interop.family import AnyFamily
from manyheads.interop.gpt import GPT2, IMAGEGPT, OPENAI_GPT
from manyheads.interop.own import OWN
from manyheads.interop.regnet import REGNET, TIMM_REGNET
from manyheads.interop.resnet import RESNET, TIMM_RESNET
from manyheads.interop.vit import DEIT, TIMM_VIT, VIT

# Formats of saved models in order of preference: a model is saved in the first format that can represent it.
_FORMATS: tuple[AnyFamily, ...] = (
    MARIAN, PEGASUS, BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MEGATRON_BERT, GPT2, OPENAI_GPT, IMAGEGPT, VIT, DEIT,
    DINOV2, DINOV2_REGISTERS, CLIP_VISION, CLIP, RESNET, DETR, EFFICIENTNET, REGNET, BIT, *OWN,
)  # fmt: skip
FAMILIES = {family.model_type: family for family in _FORMATS}
# Formats of timm by the beginning of the architecture name, such as vit_tiny_patch16_224. Models are read in these
# formats, but never written.
TIMM: dict[str, AnyFamily] = {
    "vit": TIMM_VIT, "deit": TIMM_VIT, "resnetv2": TIMM_BIT, "resnet": TIMM_RESNET, "seresnet": TIMM_RESNET,
    "efficientnet": TIMM_EFFICIENTNET, "tf_efficientnet": TIMM_EFFICIENTNET, "regnety": TIMM_REGNET,
}  # fmt: skip
