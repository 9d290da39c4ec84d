"""Two inputs of a model, one clean and one corrupt, and the difference of two logits that distinguishes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.analysis.heat_maps import Panel
from manyheads.analysis.readout import Readout
from manyheads.core.block import Stack
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import eval_mode
from manyheads.core.tap import Place
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

RESIDUAL, FEED_FORWARD, HEADS = "residual stream", "feed-forward", "heads"
# titles of the heat maps of patching, and the places whose activations are patched
PLACES: dict[str, Place] = {
    RESIDUAL: "residual", "attention": "attention_output", FEED_FORWARD: "feed_forward", HEADS: "head_outputs",
}  # fmt: skip
MIN_DIFFERENCE = 1e-6  # minimum distance of the two values that the effects are normalized by
SMALL_DIFFERENCE = 0.1  # distance below which a warning is logged


@dataclass(frozen=True)
class Difference:
    """Difference of two logits of a prediction, or one logit.

    target, against  indices of the outputs; without `against`, the difference is the logit of the target
    """

    target: int
    against: int | None

    @classmethod
    def of(cls, readout: Readout, target: str | None, against: str | None, other: Readout | None = None) -> Difference:
        """Return the difference of the logits of two outputs, given by their names.

        target   by default, the most likely output
        against  by default, the most likely output of the readout `other` that is not the target, if it is given
        """
        with torch.no_grad(), eval_mode(readout.model):
            first = int(readout.logits()[0].argmax()) if target is None else readout.names.index(target)
            second = None if against is None else readout.names.index(against)
            if second is None and other is not None:
                logits = other.logits()[0]
                ranked = logits.topk(min(2, len(logits))).indices.tolist()
                second = next((index for index in ranked if index != first), None)
        if first == second:
            raise UserError(f"target and against are both {readout.names.name(first)!r}: name two different outputs")
        return cls(first, second)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the difference (B,) for logits (B, V)."""
        value = logits[:, self.target]
        return value if self.against is None else value - logits[:, self.against]

    def name(self, readout: Readout) -> str:
        """Return the description of the difference, with the names of its outputs."""
        target = f"logit of {readout.names.name(self.target)!r}"
        return target if self.against is None else f"{target} minus that of {readout.names.name(self.against)!r}"


def stacks_of(model: nn.Module) -> list[tuple[str, Stack]]:
    """Return the names and the modules of a model's stacks of blocks."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Stack)]


def stack_of(readout: Readout) -> tuple[str, Stack]:
    """Return the name and the module of a model's only stack of blocks, whose residual stream is analyzed.

    Raises UserError for a model without such a stack, or with several.
    """
    stacks = stacks_of(readout.model)
    if len(stacks) != 1:
        raise UserError(
            f"{readout.source}: {type(readout.model).__name__} has no residual stream to analyze: expected a model "
            f"with one stack of Transformer blocks, found {len(stacks)}"
        )
    return stacks[0]


class Activations(dict[str, dict[str, Tensor]]):
    """Activations of one run, by title of PLACES and by layer name: (1, T, D), or (1, H, T, Dh) for heads.

    logits  logits (1, V) of the prediction
    """

    logits: Tensor

    @classmethod
    def of(cls, readout: Readout, *, gradients: bool = False) -> Activations:
        """Run the model on the input of a readout.

        gradients  True to record the tensors of the graph, so that gradients of the logits can be computed
        """
        name, _ = stack_of(readout)
        found, recorded = cls(), {}
        with eval_mode(readout.model), torch.set_grad_enabled(gradients), ExitStack() as recordings:
            for title, place in PLACES.items():
                names = [layer for layer in tapped(readout.model, place) if f"{layer}.".startswith(f"{name}.")]
                if names:  # Blocks may have no feed-forward networks.
                    recording = record(readout.model, names, of=place, gradients=gradients)
                    recorded[title] = recordings.enter_context(recording)
            found.logits = readout.logits()
        for title, calls in recorded.items():
            found[title] = {layer: call for layer, (call,) in calls.items()}
        return found


@dataclass(frozen=True)
class Contrast:
    """Clean and corrupt input of one model.

    difference      difference of logits that is measured
    clean_value     its value for the clean input
    corrupt_value   its value for the corrupt input
    """

    clean: Readout
    corrupt: Readout
    difference: Difference
    clean_value: float
    corrupt_value: float

    @classmethod
    def of(cls, clean: Readout, corrupt: Readout, target: str | None = None, against: str | None = None) -> Contrast:
        """Measure two inputs.

        target   name of an output; by default, the most likely output for the clean input
        against  name of another output; by default, the most likely output for the corrupt input, or the second one if
                 that is the target

        Raises UserError for a model without residual stream, if the inputs differ in their number of tokens or in the
        position of the prediction, or if their differences of logits are equal. Logs a warning if these are nearly
        equal.
        """
        stack_of(clean)
        sides = [() if readout.side is None else readout.side.tokens for readout in (clean, corrupt)]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"the clean input has {len(sides[0])} tokens and the corrupt input {len(sides[1])}, expected equal "
                f"numbers: {'|'.join(sides[0])} and {'|'.join(sides[1])}"
            )
        if clean.position != corrupt.position:
            raise UserError(
                f"the model predicts token {clean.position} of the clean input and token {corrupt.position} of the "
                "corrupt input: expected the same position"
            )
        difference = Difference.of(clean, target, against, corrupt)
        with torch.no_grad(), eval_mode(clean.model):
            clean_value, corrupt_value = (float(difference(readout.logits())) for readout in (clean, corrupt))
        if not abs(clean_value - corrupt_value) >= MIN_DIFFERENCE:  # also if a value is NaN
            raise UserError(
                f"the {difference.name(clean)} is {clean_value:.4f} for both inputs: expected inputs that change it"
            )
        if abs(clean_value - corrupt_value) < SMALL_DIFFERENCE:
            logger.warning(
                f"the {difference.name(clean)} hardly changes, from {corrupt_value:.4f} to {clean_value:.4f}: effects "
                "are fractions of this change, so small ones seem large. Choose other inputs, or a --target"
            )
        return cls(clean, corrupt, difference, clean_value, corrupt_value)

    def effect(self, logits: Tensor) -> Tensor:
        """Return the normalized difference (B,) for logits (B, V): 0 as for the corrupt input, 1 as for the clean."""
        return (self.difference(logits).double() - self.corrupt_value) / (self.clean_value - self.corrupt_value)

    def panel(self, title: str, values: Sequence[Tensor]) -> Panel:
        """Return the heat map of values (C,) for each layer."""
        count = len(values[0])
        rows = tuple(f"layer {layer}" for layer in range(len(values)))
        if title == RESIDUAL:
            rows = ("embeddings", *rows[:-1])
        columns = tuple(f"head {head}" for head in range(count))
        if title != HEADS:
            tokens = () if self.clean.side is None else self.clean.side.padded(count).tokens
            columns = tuple(f"{at} {token}" for at, token in enumerate(tokens))
        return Panel(title, rows, columns, torch.stack([*values]).double().cpu().numpy())
