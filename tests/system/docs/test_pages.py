"""Training commands shown in the documentation: each can start."""

import re
from functools import cache
from pathlib import Path
from shutil import copytree

import pytest
from PIL import Image

from manyheads import cli
from manyheads.data.embedded import phrases, tags
from manyheads.tasks.train import train
from tests.contracts.docs.test_pages import commands, words

TEACHER = {
    "items": 100, "training.epochs": 1, "preset": "vit/2-8", "model.channels": 3, "model.image_size": 32,
    "model.patch": 8, "model.width": 8, "model.layers": 1, "model.heads": 1,
}  # fmt: skip


LINES = [f"the {number} cats see {3 * number} dogs in town {number % 7}" for number in range(120)]
PARALLEL = {f"train.{language}": "\n".join(LINES) + "\n" for language in ("en", "de", "fr")}
LABELED = {"train.tsv": "text\tlabel\n" + "".join(f"{line}\t{number % 2}\n" for number, line in enumerate(LINES))}
DOCUMENTS = "\n\n".join("\n".join(LINES[first : first + 4]) for first in range(0, 120, 4))
TAGGED = {"train.conll": "\n".join(f"cats O\nJohn{number} B-PER\n" for number in range(120))}
TEXTS = {  # of a recipe whose name begins so: files of the placeholder's folder
    "translation": PARALLEL,
    "imdb": LABELED,
    "language-modeling": {"part-1.txt": "\n".join(LINES), "part-2.txt": "\n".join(reversed(LINES))},
    "text-classification/multi-label": {
        "train.tsv": LABELED["train.tsv"].replace("\t0\n", "\tcats\n").replace("\t1\n", "\t\n")
    },
    "text-classification": LABELED,
    "bert": {"train.txt": DOCUMENTS, "val.txt": DOCUMENTS},
    "tagging": TAGGED,
}


def lay(data: Path, recipe: str) -> None:
    """Data of a page's placeholder, so that a dry run has something to look at."""
    if data.suffix == ".txt":
        data.write_text("\n".join(LINES))
        return
    for beginning, files in TEXTS.items():
        if recipe.startswith(beginning):
            data.mkdir(parents=True)
            for name, content in files.items():
                (data / name).write_text(content)
            return
    if recipe.startswith("detection"):
        for kind in ("images", "labels"):
            (data / kind / "train").mkdir(parents=True)
        for number in range(120):
            Image.new("RGB", (32, 32), (number, 0, 0)).save(data / "images" / "train" / f"{number}.png")
            (data / "labels" / "train" / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
        (data / "data.yaml").write_text("names: [cat]\n")
        return
    for label in range(10):  # as the teacher has
        (data / "train" / str(label)).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (32, 32), (label, number, 0)).save(data / "train" / str(label) / f"{number}.png")


def is_tried(given: list[str]) -> bool:
    return given[0] == "train" and "--init" not in given and given[1] != "--resume"


def test_training_commands_of_pages_start(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, too: a dry run looks at the data, and at the teacher."""
    for module, corpus in ((phrases, "cldr_pairs"), (tags, "cldr_tagged")):  # of one seed they are always the same
        monkeypatch.setattr(module, corpus, cache(getattr(module, corpus)))
    lay(tmp_path / "images", "cifar10")
    train("image-classification", {**TEACHER, "data": str(tmp_path / "images")}, out=tmp_path / "teacher")
    lay(tmp_path / "texts", "text-classification")
    texts = {"data": str(tmp_path / "texts"), "training.steps": 1, "training.epochs": None, "model.max_positions": 600}
    kept = [re.sub(r" (--dry-run|--out \S+)", "", command) for command in commands()]
    for number, command in enumerate({tuple(words(command)): None for command in kept}):
        if is_tried([*command]):
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            for word in command:
                if word.startswith("data="):
                    kind = "/multi-label" * ("target=multi-label" in command)
                    lay(Path(word.removeprefix("data=")), command[1] + kind)
                if word.startswith("teacher="):
                    path, names = word.removeprefix("teacher="), ("negative", "positive")
                    if command[1].startswith(("text-", "imdb/")):
                        train(
                            "text-classification",
                            {**texts, "names": names if command[1].startswith("imdb/") else ()},
                            out=path,
                        )
                    else:
                        copytree(tmp_path / "teacher", path)
            with subtests.test(" ".join(command)):
                assert cli.main([*command, "--dry-run"]) == 0, capsys.readouterr().err
