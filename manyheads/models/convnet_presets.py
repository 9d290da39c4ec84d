"""Presets of convolutional networks that Vision Transformers are compared with. `presets.py` includes them."""

from __future__ import annotations

from typing import Any

# width, depth, image size and dropout rate of EfficientNet-B0 to B7, from the code of Tan & Le 2019
_EFFICIENTNET = (
    (1.0, 1.0, 224, 0.2), (1.0, 1.1, 240, 0.2), (1.1, 1.2, 260, 0.3), (1.2, 1.4, 300, 0.3), (1.4, 1.8, 380, 0.4),
    (1.6, 2.2, 456, 0.4), (1.8, 2.6, 528, 0.5), (2.0, 3.1, 600, 0.5),
)  # fmt: skip

# blocks of each stage of the networks of BiT, and the factors of their widths (Kolesnikov 2020, table 1)
_BIT = {"50": ((3, 4, 6, 3), (1, 3)), "101": ((3, 4, 23, 3), (1, 3)), "152": ((3, 8, 36, 3), (2, 4))}

CONVNETS: dict[str, dict[str, Any]] = {
    **{
        f"efficientnet/b{number}": {"width": width, "depth": depth, "image_size": size, "dropout": rate}
        for number, (width, depth, size, rate) in enumerate(_EFFICIENTNET)
    },
    "regnet/y-200mf": {"depths": (1, 1, 4, 7), "widths": (24, 56, 152, 368), "group_width": 8},
    "regnet/y-16gf": {},
    **{
        f"bit/{name}x{factor}": {
            "depths": depths, "widths": tuple(factor * width for width in (256, 512, 1024, 2048)),
            "stem_width": 64 * factor,
        }
        for name, (depths, factors) in _BIT.items() for factor in factors
    },
}  # fmt: skip
