"""OpenVINO: our own modules converted, with weights as they are or as int8, computing in float32 or bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.core.attention import Attention, attend
from manyheads.models.gpt import GPT

ENCODING: Mapping[str, str] = {"float32": "float32", "bf16": "bf16"}  # settings and their precisions
# two requests at once, each with half of the threads
AT_ONCE: Mapping[str, str] = {"float32 2x1": "float32", "bf16 2x1": "bf16"}
DECODING: Mapping[str, str] = {**ENCODING, "int8": "int8", "int8 bf16": "int8"}
HIDDEN = -3e4  # of a mask that is added: a mask of truth values gives NaN in bf16 (OpenVINO 2026.4, 16 prompts of 64)
LEAST_COMPRESSED = 2**16  # numbers of a matrix that becomes int8

Array = NDArray[Any]
Network = Callable[..., Array]


def encoder(
    module: nn.Module, example: Sequence[Tensor], setting: str, threads: int, *, fixed: bool = False
) -> Network:
    """A module of tensors in and a tensor out, compiled: arrays in, an array out.

    fixed  inputs always have the shapes of the example
    """
    for part in module.modules():
        if isinstance(part, Attention):
            part.explicit = False  # always use the fused kernel, which OpenVINO implements itself
    converted = _converted(module, tuple(example), fixed)
    request = _compiled(converted, setting, threads)
    return lambda *inputs: next(iter(request.infer(list(inputs), share_inputs=True).values()))


def encoder_at_once(
    module: nn.Module, example: Sequence[Tensor], setting: str, threads: int
) -> tuple[Network, Callable[[Sequence[Sequence[Array]]], None]]:
    """The same for a setting of AT_ONCE: the network for one input, and a function that runs many, two at once."""
    import openvino

    for part in module.modules():
        if isinstance(part, Attention):
            part.explicit = False
    model = _compiled_model(_converted(module, tuple(example)), setting.split()[0], threads, streams=2)
    queue, request = openvino.AsyncInferQueue(model, 2), model.create_infer_request()

    def run(batches: Sequence[Sequence[Array]]) -> None:
        for inputs in batches:
            queue.start_async(list(inputs), share_inputs=True)
        queue.wait_all()

    return lambda *inputs: next(iter(request.infer(list(inputs), share_inputs=True).values())), run


def decoder(model: GPT, setting: str, threads: int) -> tuple[Callable[[], None], Network]:
    """A GPT with keys and values as OpenVINO's own state: (forget everything, tokens (B, T) -> logits (B, V))."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation as make_stateful

    c = model.config
    past = [torch.zeros(2, c.heads, 3, c.width // c.heads) for _ in range(2 * c.layers)]
    converted = _converted(Cached(model), (torch.zeros(2, 5, dtype=torch.long), torch.arange(2), *past))
    (tokens, order, *inputs), outputs = converted.inputs, converted.outputs[1:]
    for number, (port, out) in enumerate(zip(inputs, outputs, strict=True)):
        port.node.set_partial_shape(openvino.PartialShape([-1, c.heads, -1, c.width // c.heads]))
        port.tensor.set_names({f"past{number}"})
        out.tensor.set_names({f"present{number}"})
    tokens.node.set_partial_shape(openvino.PartialShape([-1, -1]))
    order.node.set_partial_shape(openvino.PartialShape([-1]))
    converted.validate_nodes_and_infer_types()
    make_stateful(converted, {f"past{n}": f"present{n}" for n in range(len(inputs))})
    _start_empty(converted, tokens, c.heads, c.width // c.heads)
    request = _compiled(converted, setting, threads)

    def step(tokens: Array) -> Array:
        return next(iter(request.infer([tokens, np.arange(len(tokens))], share_inputs=True).values()))

    return request.reset_state, step


class Cached(nn.Module):
    """GPT-2 as a function of tokens and previous keys and values, in the form that OpenVINO optimizes.

    It has one product for query, key and value, and computes logits for the last position only.
    """

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model, self.heads = model, model.config.heads
        self.looks = nn.ModuleList()
        for block in model.decoder.blocks:
            parts = [getattr(block.attention, name) for name in ("query", "key", "value")]
            joint = nn.Linear(model.config.width, 3 * model.config.width, bias=model.config.bias)
            for name, parameter in joint.named_parameters():
                parameter.data = torch.cat([getattr(part, name) for part in parts]).detach()
            self.looks.append(joint)

    def forward(self, tokens: Tensor, order: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """tokens (B, T), the row that each continues (B,), keys and values (B, H, P, Dh) of every layer in turn."""
        batch, queries = tokens.shape
        before = past[0].shape[2]
        at = torch.arange(before, before + queries)
        seen = torch.arange(before + queries)[None, :] <= at[:, None]  # (T, P + T)
        mask = torch.where(seen, 0.0, HIDDEN)[None, None]
        x = self.model.embedding(tokens) + F.embedding(at, self.model.positions.table)
        present: list[Tensor] = []
        for layer, (block, look) in enumerate(zip(self.model.decoder.blocks, self.looks, strict=True)):
            joint: Any = block
            split = look(joint.attention_norm(x)).view(batch, queries, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            kept = past[2 * layer][order], past[2 * layer + 1][order]
            key, value = torch.cat([kept[0], split[1]], dim=2), torch.cat([kept[1], split[2]], dim=2)
            mixed = attend(split[0], key, value, bias=mask, explicit=False)
            x = x + joint.attention.output(mixed.transpose(1, 2).reshape(batch, queries, -1))
            x = x + joint.feed_forward(joint.feed_forward_norm(x))
            present += [key, value]
        norm = self.model.decoder.norm
        assert norm is not None
        return self.model.project(norm(x[:, -1])), *present


def _start_empty(model: Any, tokens: Any, heads: int, head_width: int) -> None:
    """Initialize the state as (B, H, 0, Dh), with the batch size B of the first tokens."""
    from openvino import opset13 as ops

    batch = ops.gather(ops.shape_of(tokens, output_type="i64"), ops.constant([0]), ops.constant(0))
    sizes = [ops.constant(np.array([size], np.int64)) for size in (heads, 0, head_width)]
    empty = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, *sizes], axis=0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()


def _converted(module: nn.Module, example: tuple[Tensor, ...], fixed: bool = False) -> Any:
    """By export, which takes our modules as they are but keeps their shapes; by a trace, which takes any shape."""
    import openvino

    with torch.no_grad():
        if fixed:
            return openvino.convert_model(torch.export.export(module.eval(), example))
        traced = torch.jit.trace(module.eval(), example, check_trace=False)
    return openvino.convert_model(traced, example_input=example)


def _compiled(model: Any, setting: str, threads: int) -> Any:
    return _compiled_model(model, setting, threads).create_infer_request()


def _compiled_model(model: Any, setting: str, threads: int, streams: int = 1) -> Any:
    import openvino

    if setting.startswith("int8"):
        _compress(model)
    precision = "bf16" if setting.endswith("bf16") else "f32"
    how: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        **({"PERFORMANCE_HINT": "LATENCY"} if streams == 1 else {"NUM_STREAMS": str(streams)}),
        "INFERENCE_PRECISION_HINT": precision,
    }
    if setting == "float32":
        how["KV_CACHE_PRECISION"] = "f32"  # the default stores keys and values in 8 bits
    return openvino.compile_model(model, "CPU", how)


def _compress(model: Any) -> None:
    """Large matrices as int8 with a float32 scale a row, symmetric: as NNCF's INT8_SYM, without NNCF."""
    from openvino import opset13 as ops

    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "f32":
            continue
        weight = node.get_data()
        if weight.ndim != 2 or weight.size < LEAST_COMPRESSED:
            continue
        scale = np.maximum(np.abs(weight).max(1, keepdims=True), 1e-12) / 127
        whole = ops.constant(np.round(weight / scale).astype(np.int8))
        restored = ops.multiply(ops.convert(whole, "f32"), ops.constant(scale.astype(np.float32)))
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(restored.output(0))
