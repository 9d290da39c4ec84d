"""Export of models to ONNX and to files of `torch.export`. The outputs of each file are compared with the model's."""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError, extra
from manyheads.export.graphs import Graph, Weights, graphs

TOLERANCE = 1e-4  # maximum difference between the outputs of an exported float32 graph and of the model
# Maximum distance between the outputs of the model and of a graph with narrower weights, relative to the norm of the
# outputs. Typical distances are 0.001 in float16 and 0.01 to 0.05 in 8 bits.
BOUNDS = {"float16": 0.02, "int8": 0.25}

# Sizes of the example inputs with which graphs are traced (TRACED), and of the inputs with which they are checked.
TRACED = {"batch": 2, "tokens": 3, "source": 5, "past": 4, "past + tokens": 7}
CHECKED = (
    {"batch": 3, "tokens": 1, "source": 2, "past": 1, "past + tokens": 2},
    {"batch": 1, "tokens": 4, "source": 4, "past": 0, "past + tokens": 4},
)

logger = logging.getLogger(__name__)


def write_onnx(model: Model[Config], out: Path, weights: Weights = "float32") -> None:
    """Write the ONNX files of a model to the directory `out`.

    weights  number format. "float16" means weights and computations in half precision, with inputs and outputs in
             float32. "int8" means 8-bit matrices, whose inputs are quantized when the model runs (dynamic quantization)

    Raises UserError if the outputs of ONNX Runtime differ from the model's outputs by more than 1e-4, relative to the
    largest value of an output if this value is above one. For narrower weights, the distance of the outputs is logged,
    and limited by `BOUNDS`.
    """
    with extra("export", "export to ONNX"):
        import onnxruntime
        import onnxscript  # noqa: F401  # needed by torch.onnx
    for name, graph in graphs(model).items():
        file, inputs = out / f"{name}.onnx", [entry.name for entry in graph.inputs]
        with _quiet("torch.onnx"):
            program = torch.onnx.export(
                graph, _traced(graph), input_names=inputs, output_names=graph.outputs, dynamo=True,
                dynamic_shapes=(tuple(entry.varying for entry in graph.inputs),), verbose=False,
            )  # fmt: skip
            assert program is not None
            program.save(str(file))
        _narrow(file, weights)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

        def run(*examples: Tensor, session: Any = session, inputs: list[str] = inputs) -> list[Tensor]:
            feed = {name: example.numpy() for name, example in zip(inputs, examples, strict=True)}
            return [torch.from_numpy(output) for output in session.run(None, feed)]

        _check(file, graph, run, "ONNX Runtime", weights)


def _narrow(file: Path, weights: Weights) -> None:
    """Convert the weights of an ONNX file with the tools of ONNX Runtime."""
    if weights == "float16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(file), keep_io_types=True), file)
    elif weights == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # The quantizer logs through the root logger.
        with tempfile.TemporaryDirectory() as folder, _quiet("root"):
            wide = shutil.move(file, folder)
            quantize_dynamic(wide, file, weight_type=QuantType.QInt8, per_channel=True)


def write_pt2(model: Model[Config], out: Path) -> None:
    """Write the graphs of a model to files of `torch.export` in the directory `out`, and check their outputs."""
    for name, graph in graphs(model).items():
        file = out / f"{name}.pt2"
        with _quiet("torch.onnx"):
            dynamic = (tuple(dict.fromkeys(entry.varying, Dim.DYNAMIC) for entry in graph.inputs),)
            program = torch.export.export(graph, _traced(graph), dynamic_shapes=dynamic)
            torch.export.save(program, file)
            _check(file, graph, torch.export.load(file).module(), "torch.export")


def check_copy(copied: Model[Config], model: Model[Config]) -> None:
    """Raise UserError if a copy of a model, in float32 on the CPU, gives other outputs than the model."""
    if next(model.parameters()).dtype != torch.float32 or next(model.parameters()).device.type != "cpu":
        model = copy.deepcopy(model).to("cpu", torch.float32)
    copies = graphs(copied)
    with eval_mode(model):
        for name, graph in graphs(model).items():
            _check(Path(name), graph, copies[name], "the written directory")


def _check(
    file: Path, graph: Graph, run: Callable[..., Sequence[Tensor]], reader: str, weights: Weights = "float32"
) -> None:
    """Raise UserError if an exported file gives other outputs than its graph.

    run     function that computes the outputs of the file
    reader  name of the tool that computes them, for messages
    """
    error, bound = (_error, TOLERANCE) if weights == "float32" else (_distance, BOUNDS[weights])
    errors = []
    for sizes in CHECKED:
        examples = _examples(graph, sizes)
        with torch.inference_mode():
            errors += [error(a, b) for a, b in zip(run(*examples), graph(*examples), strict=True)]
    if not (worst := max(errors)) <= bound:
        raise UserError(f"{file.name}: expected an error below {bound}, found {worst:.1e} in {reader}")
    logger.info(f"{file.name}: the largest error of {reader} is {worst:.1g}")


def _traced(graph: Graph) -> tuple[Tensor, ...]:
    """Return example inputs for tracing a graph, after one call of the graph with them.

    This call computes the tables that a model caches, because tracing does not compute values.
    """
    examples = _examples(graph, TRACED)
    with torch.no_grad():
        graph(*examples)
    return examples


def _examples(graph: Graph, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    return tuple(entry.example(sizes) for entry in graph.inputs)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / max(1.0, float(expected.abs().max())))


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-6)) if expected.numel() else 0.0


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Context manager that suppresses warnings, and messages of the logger `name` below the level ERROR.

    The messages of exporter and quantizer are about libraries that are not installed, and about names of sizes.
    """
    messages = logging.getLogger(name)
    level = messages.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        messages.setLevel(logging.ERROR)
        try:
            yield
        finally:
            messages.setLevel(level)
