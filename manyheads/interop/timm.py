"""Helper functions to read models of the image library `timm`. Models are never written in this format."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject

# Keys of config.json that do not change the model's output, and keys that `arguments` and `labels` read.
IGNORED = frozenset(
    ["architecture", "num_classes", "num_features", "model_args", "pretrained_cfg", "label_names", "label_descriptions"]
)

_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # resampling filters as constants of Pillow


def arguments(settings: JsonMapping, free: Collection[str], fixed: JsonMapping) -> JsonObject:
    """Return the model arguments of timm in config.json. Raise UserError for an unsupported argument or value.

    settings  content of config.json
    free      names of the arguments that may have any value
    fixed     further arguments, with their only supported values
    """
    given = settings.get("model_args") or {}
    if not isinstance(given, dict):
        raise UserError(f"'model_args' is {str(given)[:80]}; expected a mapping")
    for key, value in given.items():
        if key not in free and not (key in fixed and value == fixed[key]):
            raise UserError(f"'model_args' has {key!r}: {value!r}, which cannot be represented")
    return given


def labels(settings: JsonMapping, head: Tensor | None) -> list[str]:
    """Return the class names in config.json; if it contains none, return class numbers as names.

    head  weight matrix of the classifier, which determines the number of classes; None for a model without classifier
    """
    count, names = 0 if head is None else len(head), settings.get("label_names")
    return names if isinstance(names, list) and len(names) == count else list(map(str, range(count)))


def preprocessing(settings: JsonMapping) -> JsonObject | None:
    """Convert `pretrained_cfg` of config.json to the content of preprocessor_config.json.

    Returns None if the key is missing.
    """
    given = settings.get("pretrained_cfg")
    if given is None:
        return None
    try:
        size, crop = int(given["input_size"][-1]), float(given["crop_pct"])
        mean, std = ([float(number) for number in given[name]] for name in ("mean", "std"))
        resample, mode = _RESAMPLE[given["interpolation"]], given.get("crop_mode", "center")
        edge = int(size / crop)
        if mode not in ("center", "squash") or size < 1 or not 0 < crop <= 1:
            raise UserError
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        raise UserError(
            f"'pretrained_cfg' is {str(given)[:80]}; expected input_size, crop_pct from 0 to 1, crop_mode center or"
            " squash, interpolation bilinear or bicubic, mean and std"
        ) from None
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
