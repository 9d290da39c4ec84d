"""Every parameter of every model receives a gradient, so no parameter is unused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.analysis.costs import example
from manyheads.models import (
    bert,
    bit,
    bytenet,
    conv_attention,
    convs2s,
    deep_att,
    efficientnet,
    encoder_decoder,
    global_attention,
    gnmt,
    gpt,
    local_attention,
    nonlocal_net,
    regnet,
    resnet,
    rnn_attention,
    selective_kernel,
    seq2seq_rnn,
    sequence_baselines,
    split_attention,
    text_classifier,
    transformer,
    universal,
    vit,
)
from manyheads.models.presets import preset

VOCABULARY = 11
PAIR = {"source_vocab": VOCABULARY, "target_vocab": VOCABULARY, "pad": 10, "end": 1, "start": 10}
TEXT: dict[str, Any] = {"vocab": VOCABULARY, "width": 8, "layers": 2, "heads": 2, "feed_forward": 16}
TINY: dict[str, Any] = {"width": 8, "heads": 2, "feed_forward": 16}
SIDES: dict[str, Any] = {
    "width": 8, **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("heads", 2), ("layers", 2))}
}  # fmt: skip
IMAGE: dict[str, Any] = {"labels": ("a", "b", "c")}
NET: dict[str, Any] = {**IMAGE, "depths": (1, 1), "widths": (8, 16), "stem_width": 8, "image_size": 16}


def _bert(head: bert.Head, **more: Any) -> bert.Bert:
    return bert.Bert(preset("bert/tiny", **TEXT, head=head, **more))


def _baseline(name: str) -> nn.Module:
    return sequence_baselines.SequenceBaseline(preset(name, "sequence-baseline", vocab=VOCABULARY, width=8))


def _attentive(name: str, **more: Any) -> nn.Module:
    return rnn_attention.RNNAttention(preset(f"rnn-attention/{name}", **PAIR, width=8, hidden=6, **more))


def _universal(name: str, **more: Any) -> nn.Module:
    return universal.Universal(preset(name, "universal", **PAIR, **TINY, **more))


def _vit(**more: Any) -> nn.Module:
    small = {"width": 8, "layers": 2, "heads": 2, "feed_forward": 16, "image_size": 8, "patch": 4}
    return vit.ViT(preset("vit/ti16", **small, **IMAGE, **more))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: transformer.Transformer(preset("transformer/tiny", **PAIR, **SIDES)),
    "transformer, blog": lambda: transformer.Transformer(preset("transformer/blog", **PAIR, **SIDES)),
    "transformer, pre": lambda: transformer.Transformer(
        preset("transformer/tiny", **PAIR, **SIDES, norm="pre", final_norm=True, positions="learned")
    ),
    "transformer, experts": lambda: transformer.Transformer(
        preset("transformer/tiny-experts", **PAIR, **SIDES, experts=3, top_k=3)
    ),
    "universal": lambda: _universal("tiny"),
    "universal, basic": lambda: _universal("adaptive-tiny", timing="learned"),
    "universal, accumulated": lambda: _universal("tiny", halting="accumulated", transition="separable", norm="pre"),
    "seq2seq-rnn": lambda: seq2seq_rnn.Seq2SeqRNN(preset("seq2seq-rnn/tiny", **PAIR, width=8, hidden=6)),
    "rnn-attention, luong": lambda: _attentive("luong", cell="rnn", scores="general", input_feeding=True),
    "rnn-attention, bahdanau": lambda: _attentive("bahdanau"),
    "convs2s": lambda: convs2s.ConvS2S(preset("convs2s/rival", **PAIR, width=8, hidden=6)),
    "bytenet": lambda: bytenet.ByteNet(preset("bytenet/rival", **PAIR, width=8, hidden=6)),
    "gnmt": lambda: gnmt.GNMT(preset("gnmt/tiny", **PAIR, width=8, hidden=6)),
    "gnmt, experts": lambda: gnmt.GNMT(preset("gnmt/experts", **PAIR, width=8, hidden=6, experts=3, top_k=3)),
    "deep-att": lambda: deep_att.DeepAtt(preset("deep-att/rival", **PAIR, width=8, hidden=6, layers=2)),
    "bert, pretraining": lambda: _bert("pretraining"),
    "bert, sequence": lambda: _bert("sequence", labels=("a", "b")),
    "bert, token": lambda: _bert("token", labels=("a", "b")),
    "bert, question": lambda: _bert("question"),
    "bert, choice": lambda: _bert("choice"),
    "gpt": lambda: gpt.GPT(preset("gpt/117m", **TEXT)),
    "gpt2": lambda: gpt.GPT(preset("gpt2/124m", **TEXT | {"end": None})),
    "gpt2, nano": lambda: gpt.GPT(preset("gpt2/nano", **TEXT)),
    "text classifier": lambda: text_classifier.TextClassifier(
        preset("text-classifier/corrected", vocab=VOCABULARY, width=8, head_width=4, feed_forward=16)
    ),
    **{kind: lambda kind=kind: _baseline(kind) for kind in ("rnn", "lstm", "gru", "bilstm", "conv1d", "conv2d")},  # type: ignore[misc]
    "vit": _vit,
    "vit, pooled": lambda: _vit(pool="mean"),
    "deit": lambda: _vit(distilled=True),
    "resnet": lambda: resnet.ResNet(preset("resnet/18-small", **NET)),
    "resnet, squeezed": lambda: resnet.ResNet(preset("resnet/18-small", **NET, squeeze=4)),
    "efficientnet": lambda: efficientnet.EfficientNet(
        preset("efficientnet/b0", **IMAGE, image_size=40, width=0.25, depth=0.3, stochastic_depth=0.0)
    ),
    "regnet": lambda: regnet.RegNet(
        preset("regnet/y-16gf", **NET | {"widths": (32, 64), "stem_width": 32}, group_width=4)
    ),
    "bit": lambda: bit.Bit(preset("bit/50x1", **NET | {"widths": (8, 16)}, groups=2)),
    "non-local": lambda: nonlocal_net.NonLocalNet(preset("nonlocal/18-small", **NET, stages=(2,), every=1)),
    "local attention": lambda: local_attention.LocalAttentionNet(
        preset("local-attention/18-small", **NET, heads=2, window=3)
    ),
    "selective kernels": lambda: selective_kernel.SKNet(preset("sknet/18-small", **NET)),
    "split attention": lambda: split_attention.ResNeSt(preset("resnest/18-small", **NET)),
    "global attention": lambda: global_attention.GSANet(preset("gsa/18-small", **NET, heads=2)),
    **{
        f"conv-attention, {kind}": lambda kind=kind: conv_attention.ConvAttention(  # type: ignore[misc]
            preset(f"conv-attention/{kind}-small", **IMAGE, width=8, layers=1, heads=2, image_size=8)
        )
        for kind in ("quadratic", "relative", "content")
    },
}


def _inputs(model: Any) -> list[Any]:
    """Random ones of the kind that the model takes."""
    sized = (6, 6) if isinstance(model, universal.Universal | encoder_decoder.EncoderDecoder) else (6,)
    image = hasattr(model.config, "image_size")
    made: list[Any] = []
    for given in example(model, *(() if image else sized)):
        if given is None:
            made.append(None)
        elif given.is_floating_point():
            made.append(torch.randn(2, *given.shape[1:]))
        else:
            made.append(torch.randint(0, VOCABULARY - 1, (2, *given.shape[1:])))
    return made


def _tensors(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [t for part in outputs for t in _tensors(part)]


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().train()
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at zero, and hide those before them
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    sum((out * torch.randn_like(out)).sum() for out in _tensors(model(*_inputs(model)))).backward()  # type: ignore[union-attr]
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    # a key's bias moves all scores of a query alike, and so nothing
    none = {name for name, p in model.named_parameters() if not (p.grad.abs() > 1e-9).any()}  # type: ignore[union-attr]
    assert {name for name in none if not name.endswith("key.bias")} == set()
