"""Color of each model in the pictures of all pages and tutorials, by the name of its recipe or of its row.

The colors are the palette of Okabe & Ito, black and gray. Models that one picture compares have different colors.
"""

from __future__ import annotations

from manyheads.analysis.drawing import HUES

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = HUES

MODEL_COLORS = {
    "cifar10/resnet": BLUE, "cifar10/vit": VERMILION, "cifar10/local-attention": GREEN,
    # translators of `papers.rivals`
    "lstm": "#999999", "lstm-dot": SKY, "gru-additive": BLUE, "gnmt": GREEN, "convs2s": ORANGE, "bytenet": PURPLE,
    "transformer": VERMILION, "transformer-post": "#8B2500", "experts": "#000000", "lstm-experts": "#666666",
    "deep-att": "#CC9900",
    # language models of `papers.capacity`, together with "lstm" and "transformer"
    "convolution": ORANGE,
}  # fmt: skip
