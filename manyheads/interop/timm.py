"""What all directories that timm wrote have in common; they are read, never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers


def preprocessing(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Their `pretrained_cfg` as a preprocessor_config.json says it; None where there is none."""
    given = settings.get("pretrained_cfg")
    if given is None:
        return None
    try:
        size, crop = int(given["input_size"][-1]), float(given["crop_pct"])
        mean, std = ([float(number) for number in given[name]] for name in ("mean", "std"))
        resample, mode = _RESAMPLE[given["interpolation"]], given.get("crop_mode", "center")
        if mode not in ("center", "squash") or size < 1 or not 0 < crop <= 1:
            raise ValueError
    except (IndexError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"'pretrained_cfg' is {str(given)[:80]}: expected input_size, crop_pct from 0 to 1, crop_mode center or"
            " squash, interpolation bilinear or bicubic, mean and std"
        ) from None
    edge = int(size / crop)
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "resample": resample,
        "size": {"shortest_edge": edge} if mode == "center" else {"height": edge, "width": edge},
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        "do_convert_rgb": len(mean) == 3,
    }
