"""All fuzzing targets by name; a target's module is imported on first use."""

from importlib import import_module

from tests.stress.fuzzing.targets.target import Target

ROOMS = {
    "data": ("rows", "parallel", "conll", "squad", "treebank", "texts", "class-folders", "images", "image"),
    "models": ("model-directory", "foreign-directory", "weights", "pickles", "tokenizer", "vocabularies", "tutorial"),
    "runs": ("checkpoints", "result.json", "settings", "caches"),
    "requests": ("lines", "requests"),
}
NAMES = tuple(name for names in ROOMS.values() for name in names)


def target(name: str) -> Target:
    room = next(room for room, names in ROOMS.items() if name in names)
    entry: Target = import_module(f"tests.stress.fuzzing.targets.{room}").TARGETS[name]
    return entry
