"""Reader and writer of a classifier's labels and target in config.json (`id2label`, `label2id`, `problem_type`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject


def read_labels(settings: JsonMapping) -> tuple[str, ...]:
    """Return the class names in config.json, in the order of class indices.

    Names may repeat: ImageNet has two classes "crane". If config.json has only a number of classes, they get default
    names.
    """
    names = settings.get("id2label")
    if names is None:
        count = settings.get("num_labels", 2)
        if not isinstance(count, int) or not 1 <= count <= 1_000_000:
            raise UserError(f"'num_labels' is {count!r}; expected an integer from 1 to 1000000")
        names = {str(index): f"LABEL_{index}" for index in range(count)}
    whole = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not whole or {str(key) for key in names} != {str(index) for index in range(len(names))}:
        raise UserError(f"'id2label' is {str(names)[:80]}; expected a name for each of 0, 1, ...")
    labels = tuple({str(key): name for key, name in names.items()}[str(index)] for index in range(len(names)))
    back = settings.get("label2id")  # If only id2label was set, label2id may contain default names.
    if isinstance(back, dict) and all(label.startswith("LABEL_") for label in back):
        back = None
    # Class indices may be strings, as in many published models.
    numbers = {label: str(index) for label, index in back.items()} if isinstance(back, dict) else back
    if back is not None and numbers != {label: str(index) for index, label in enumerate(labels)}:
        raise UserError(f"'label2id' is {str(back)[:80]}, which contradicts 'id2label'")
    return labels


_PROBLEMS = {
    "classes": "single_label_classification",
    "regression": "regression",
    "multi-label": "multi_label_classification",
}


def read_target(settings: JsonMapping, labels: Sequence[str]) -> str:
    """Return the target of a classifier: "classes", "multi-label" or "regression".

    If config.json has no `problem_type`, a model with one label is a regression.
    """
    problem = settings.get("problem_type")
    if problem is None:
        return "regression" if len(labels) == 1 else "classes"
    target = next((target for target, name in _PROBLEMS.items() if name == problem), None)
    if target is None or (target == "regression" and len(labels) != 1):
        raise UserError(
            f"'problem_type' is {problem!r} for {len(labels)} labels; expected one of {', '.join(_PROBLEMS.values())}, "
            "and one label for a regression"
        )
    return target


class TargetRow:
    """Row of a conversion table for the target of a classifier.

    The row only writes the target. The function `infer` of a family reads it, because it depends on the head.
    """

    ours, keys = "target", ("problem_type",)

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        return {}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        target = ours.get("target", "classes")
        return {} if target == "classes" else {"problem_type": _PROBLEMS[target]}


LabelValue = str | int | float | bool
_TYPES: dict[str, Callable[[str], LabelValue]] = {"str": str, "int": int, "float": float, "bool": "True".__eq__}


def typed_labels(labels: Sequence[str], label_type: str) -> tuple[LabelValue, ...]:
    """Convert label names to the type that the labels had in the training data (key `label_type` of config.json)."""
    try:
        return tuple(map(_TYPES[label_type], labels))
    except (KeyError, ValueError, TypeError):
        raise UserError(
            f"'label_type' is {label_type!r}; expected a type of all names, of {', '.join(_TYPES)}"
        ) from None


def label_names(labels: Sequence[str]) -> JsonObject:
    """Return the keys of config.json that store the class names."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
