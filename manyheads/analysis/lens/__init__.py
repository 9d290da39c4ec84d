"""Lens: the prediction that a model would make if a given layer were its last.

The logit lens applies the final norm and the output matrix to the residual stream after each layer. The tuned lens
applies a trained affine map before them. For the last layer, the result of both is the model's prediction.
"""

from manyheads.analysis.lens.layers import LayerStates, Predictions, divergence, layer_states, predictions
from manyheads.analysis.lens.lens import EMBEDDING, Lens
from manyheads.analysis.lens.tuned import Tuned, TunedLens, tune

__all__ = [
    "EMBEDDING", "LayerStates", "Lens", "Predictions", "Tuned", "TunedLens", "divergence", "layer_states",
    "predictions", "tune",
]  # fmt: skip
