"""Export of models to ONNX, which ONNX Runtime checks, and to files of `torch.export`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from manyheads.errors import UserError, extra
from manyheads.export.graphs import Graph, graphs

TOLERANCE = 1e-4  # maximum error of an output
# sizes of the example inputs from which graphs are traced, and of those that check them
TRACED = {"batch": 2, "tokens": 3, "source": 5, "past": 4, "past + tokens": 7}
CHECKED = {"batch": 3, "tokens": 1, "source": 2, "past": 1, "past + tokens": 2}

logger = logging.getLogger(__name__)


def write_onnx(model: Any, out: Path) -> None:
    """Write the ONNX files of a model to the directory `out`.

    Raises UserError if the outputs of ONNX Runtime differ from the model's by more than 1e-4. The difference is
    relative to the largest value of an output, if that is above one.
    """
    with extra("export", "export to ONNX"):
        import onnxruntime
        import onnxscript  # noqa: F401  # torch.onnx imports it
    for name, graph in graphs(model).items():
        file, inputs = out / f"{name}.onnx", [entry.name for entry in graph.inputs]
        with _quiet():
            program = torch.onnx.export(
                graph, _traced(graph), input_names=inputs, output_names=graph.outputs, dynamo=True,
                dynamic_shapes=(tuple(entry.varying for entry in graph.inputs),), verbose=False,
            )  # fmt: skip
            assert program is not None
            program.save(str(file))
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        examples = _examples(graph, CHECKED)
        found = session.run(None, {name: example.numpy() for name, example in zip(inputs, examples, strict=True)})
        with torch.inference_mode():
            expected = graph(*examples)
        worst = max(_error(torch.from_numpy(a), b) for a, b in zip(found, expected, strict=True))
        if not worst <= TOLERANCE:
            raise UserError(f"{name}.onnx: expected an error below {TOLERANCE}, found {worst:.1e} in ONNX Runtime")
        logger.info(f"{name}.onnx: the largest error of ONNX Runtime is {worst:.0e}")


def write_pt2(model: Any, out: Path) -> None:
    """Write the graphs of a model to files of `torch.export` in the directory `out`."""
    for name, graph in graphs(model).items():
        with _quiet():
            dynamic = (tuple(dict.fromkeys(entry.varying, Dim.DYNAMIC) for entry in graph.inputs),)
            program = torch.export.export(graph, _traced(graph), dynamic_shapes=dynamic)
            torch.export.save(program, out / f"{name}.pt2")


def _traced(graph: Graph) -> tuple[Tensor, ...]:
    """Return example inputs for tracing. Tracing computes no values, so tables that a model caches are computed now."""
    examples = _examples(graph, TRACED)
    with torch.no_grad():
        graph(*examples)
    return examples


def _examples(graph: Graph, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    return tuple(entry.example(sizes) for entry in graph.inputs)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / max(1.0, float(expected.abs().max())))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of the exporter, which concern libraries that are not installed and names of sizes."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exporter.setLevel(logging.ERROR)
        try:
            yield
        finally:
            exporter.setLevel(level)
