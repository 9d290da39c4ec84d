"""Number of parameters, floating-point operations and memory of a model, counted separately for each of its modules.

Operations are counted as in the literature on scaling laws: a multiply-add is 2 FLOPs, and only products count
(matrix products, convolutions, attention scores and the weighted sums of values). Norms, activations, softmax and
embedding look-ups are excluded. Masked scores are included, because dense kernels compute them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.config import Config
from manyheads.core.experts import expert_layers
from manyheads.core.interface import Generates, Model, OutputProjection, ReadsImages
from manyheads.core.recording import tapped
from manyheads.files import JsonObject
from manyheads.models.bert_features import BertFeatures
from manyheads.models.encoder_decoder import EncoderDecoder
from manyheads.models.presets import build, preset
from manyheads.models.recurrence import Recurrence, SeparableBlock

# Modules whose size depends on the size of the vocabulary or on the maximum text length. An exception is the module
# `output` of a classifier, which has one row per label.
EMBEDDINGS = (
    "source_embedding", "target_embedding", "embedding", "segments", "positions", "output", "output_bias",
)  # fmt: skip
LENGTH = 32  # default number of tokens per text for the FLOP estimate, about the mean of the WMT14 data
TRAINING_PASSES = 3  # The backward pass costs twice as many operations as the forward pass.
FLOAT32 = 4  # bytes per parameter


def preset_model(name: str) -> Model[Config]:
    """Build a model from a preset such as `transformer/base` on the meta device, without memory for its parameters.

    >>> preset_model("gpt3/175b").config.width  # without memory for the weights
    12288
    """
    with torch.device("meta"):
        return build(preset(name))


def summary(model: Model[Config], *lengths: int) -> JsonObject:
    """Return the parameter counts of a model, its FLOPs for one item of the given lengths, and its memory in bytes.

    The result is a dictionary of plain data. For a model with experts, the entry `active_non_embedding` excludes the
    experts that a token does not use, as the FLOPs do.

        >>> costs = summary(gpt.model, 16)
        >>> costs["parameters"]["total"] == sum(p.numel() for p in gpt.model.parameters())
        True
    """
    parts = parameters(model)
    total = sum(parts.values())
    non_embedding, active = total - embeddings(model), active_parameters(model)
    return {
        "config": asdict(model.config),
        "parameters": {
            "total": total,
            "non_embedding": non_embedding,
            **({"active_non_embedding": active} if active < non_embedding else {}),
            "parts": parts,
            "shapes": shapes(model),
        },
        "flops": flops(model, *lengths),
        "memory": memory(model),
    }


def parameters(model: Model[Config]) -> dict[str, int]:
    """Return the number of parameters of each module, summed over the layers.

    A weight matrix that several modules share counts once, under its first name.

        >>> sum(parameters(gpt.model).values()) == sum(p.numel() for p in gpt.model.parameters())
        True
    """
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[_part(_owner(name))] += parameter.numel()
    return dict(parts)


def embeddings(model: Model[Config]) -> int:
    """Return the number of parameters in the vocabulary embeddings and position embeddings."""
    given = vars(model.config)
    vocabulary = given.get("target_vocab", given.get("vocab"))
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if (part := name.removeprefix("bert.").split(".")[0]) in EMBEDDINGS
        and (part != "output" or vocabulary in parameter.shape)
    )


def active_parameters(model: Model[Config]) -> int:
    """Return the number of parameters that a token uses, without embeddings and without the experts of other tokens."""
    idle = sum(layer.idle_parameters for layer in expert_layers(model))
    return sum(parameters(model).values()) - embeddings(model) - idle


def shapes(model: Model[Config]) -> dict[str, str]:
    """Return the weight shapes of each module, such as "6 x (512 x 512 + 512)": layers x (weight + bias)."""
    owners: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        owners.setdefault(_owner(name), []).append(" x ".join(map(str, parameter.shape)))
    sizes_of: dict[str, list[str]] = {}
    for owner, sizes in owners.items():
        sizes_of.setdefault(_part(owner), []).append(" + ".join(sizes))
    return {
        part: sizes[0] if len(sizes) == 1 else f"{len(sizes)} x ({sizes[0]})"
        for part, sizes in sizes_of.items()
        if len(set(sizes)) == 1
    }


def _owner(name: str) -> str:
    """Return the name of the module that contains a parameter.

    For a parameter that belongs to the whole model, return the parameter's name.
    """
    return name.rpartition(".")[0] or name


def _part(path: str) -> str:
    """Remove layer indices from a module path: `decoder.blocks.3.cross.query` becomes `decoder.cross.query`."""
    return ".".join(name for name in path.split(".") if name != "blocks" and not name.isdigit())


def example(model: Model[Config], *lengths: int, rows: int = 1) -> tuple[Tensor | None, ...]:
    """Return example inputs for a model, filled with zeros.

    They are an image of the model's input size, a text of the given length, or a pair of source and target texts.
    """
    device = next(model.parameters()).device
    if isinstance(model, ReadsImages):
        return (torch.zeros(rows, model.channels, model.image_size, model.image_size, device=device),)
    texts = [torch.zeros(rows, length, dtype=torch.int64, device=device) for length in lengths]
    if isinstance(model, EncoderDecoder):
        return texts[0], None, texts[-1]
    return (texts[0][:, None] if model.head_name == "choice" else texts[0],)


def flops(model: Model[Config], *lengths: int) -> JsonObject:
    """Return the FLOPs of each module for one forward pass over an item, and the total FLOPs of a training step.

    lengths  number of tokens in the text, or in the source and in the target; ignored for an image, which has the
             model's input size and counts as one token

    In the result, `forward_per_token` is the cost of a forward pass divided by the number of tokens (of the target, for
    a pair). The entry `scores` holds the cost of the attention scores and of the weighted sums of values.

        >>> flops(gpt.model, 16)["training"] == 3 * flops(gpt.model, 16)["forward"]
        True
    """
    lengths = lengths or (min(LENGTH, model.max_positions or LENGTH),)
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        # Gradients are disabled because the FLOP counter fails on modules that take a parameter as input.
        twin = type(model)(model.config).eval().requires_grad_(False)
        inputs = example(twin, *lengths)
        twin(*inputs)
    assert inputs[0] is not None
    image = list(inputs[0].shape[1:]) if inputs[0].is_floating_point() else None
    lengths = lengths if image is None else (1,)
    forward = counter.get_total_flops()
    counts = {path: sum(ops.values()) for path, ops in counter.get_flop_counts().items() if path != "Global"}
    own = dict(counts)  # operations of each module, excluding the operations of its child modules
    for path, count in counts.items():
        above = [other for other in counts if path.startswith(f"{other}.")]
        if above:
            own[max(above, key=len)] -= count
    parts: Counter[str] = Counter()
    attentions = tapped(twin)
    for path, count in own.items():
        name = path.partition(".")[2]
        module = twin.get_submodule(name)
        looks = isinstance(module, Block) or name in attentions
        is_output = not name or isinstance(module, OutputProjection)
        if count:
            parts["output" if is_output else f"{_part(name)}.scores" if looks else _part(name)] += count
    assert sum(parts.values()) == forward
    return {
        "convention": "2 per multiply-add, products only",
        "tokens": list(lengths),
        **({} if image is None else {"image": image}),
        "parts": dict(parts),
        "forward": forward,
        "forward_per_token": forward / lengths[-1],
        "training": TRAINING_PASSES * forward,
    }


def training_flops(model: Model[Config], *lengths: int) -> float:
    """Return the FLOPs of a training step for one item of the given lengths, as in `flops`.

    A frozen encoder needs no backward pass.
    """
    cost = flops(model, *lengths)
    is_frozen = isinstance(model, BertFeatures)
    frozen = sum(count for part, count in cost["parts"].items() if is_frozen and part.startswith("bert."))
    return float(cost["training"] - (TRAINING_PASSES - 1) * frozen)


def memory(model: Model[Config], state: int = 2) -> dict[str, int]:
    """Return the memory in bytes that a float32 model needs for its weights, for training and for decoding.

    Training stores the weights, and for each trained parameter a gradient and the state of the optimizer. Activations
    are not included, because they depend on the batch. Decoding stores cached keys and values for each target token
    and, in an encoder-decoder, for each source token.

    state  number of values that the optimizer stores for each parameter: two moments for Adam

        >>> memory(gpt.model)["weights"] == 4 * sum(p.numel() for p in gpt.model.parameters())
        True
    """
    weights = FLOAT32 * sum(parameters(model).values())
    trained = FLOAT32 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    held = {"weights": weights, "optimizer": state * trained, "training": weights + (1 + state) * trained}
    if not isinstance(model, Generates):
        return held
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    crosses = [block.cross for block in blocks if block.cross is not None]
    decoding = [block for block in blocks if block.cross is not None] or blocks
    held["cache_per_token"] = FLOAT32 * sum(_kept(model, block) for block in decoding)
    if crosses:
        held["cache_per_source_token"] = FLOAT32 * sum(map(_key_and_value, crosses))
    return held


def _kept(model: Model[Config], block: Block) -> int:
    """Return the number of values that a KV cache stores per token.

    A block that is applied several times counts once for each application.
    """
    looks_back = block.attention.output.out_features if isinstance(block, SeparableBlock) else 0
    attention = block.attention
    # `KVCache` stores keys and values with equal width, the larger of the two widths.
    numbers = 2 * max(attention.key.out_features, attention.value.out_features) + looks_back
    return numbers * sum(m.config.steps if isinstance(m, Recurrence) else 1
                      for m in model.modules() if any(child is block for child in m.children()))  # fmt: skip


def _key_and_value(attention: Attention) -> int:
    return attention.key.out_features + attention.value.out_features
