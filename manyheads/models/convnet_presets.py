"""Presets of convolutional networks that Vision Transformers are compared with. `presets.py` includes them."""

from __future__ import annotations

from typing import Any

# width, depth, image size and dropout rate of EfficientNet-B0 to B7, from the code of Tan & Le 2019
_EFFICIENTNET = (
    (1.0, 1.0, 224, 0.2), (1.0, 1.1, 240, 0.2), (1.1, 1.2, 260, 0.3), (1.2, 1.4, 300, 0.3), (1.4, 1.8, 380, 0.4),
    (1.6, 2.2, 456, 0.4), (1.8, 2.6, 528, 0.5), (2.0, 3.1, 600, 0.5),
)  # fmt: skip

CONVNETS: dict[str, dict[str, Any]] = {
    f"efficientnet/b{number}": {"width": width, "depth": depth, "image_size": size, "dropout": rate}
    for number, (width, depth, size, rate) in enumerate(_EFFICIENTNET)
}
