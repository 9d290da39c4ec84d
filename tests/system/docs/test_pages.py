"""Training commands shown in the documentation: each can start."""

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
    "items": 100, "training.epochs": 1, "preset": "vit/2-8", "model.width": 8, "model.layers": 1, "model.heads": 1,
}  # fmt: skip


TEXTS = {  # of a recipe whose name begins so: files of the placeholder's folder
    "translation": {"train.en": "one\ntwo\n", "train.de": "eins\nzwei\n", "train.fr": "un\ndeux\n"},
    "imdb": {"train.tsv": "text\tlabel\ngood\t1\nbad\t0\n"},
    "language-modelling": {"part-1.txt": "one\n", "part-2.txt": "two\n"},
    "text-classification": {"train.tsv": "text\tlabel\ngood\t1\nbad\t0\n"},
    "bert": {"train.txt": "one two\nthree\n\nfour\nfive six\n", "val.txt": "one\ntwo\n"},
    "tagging": {"train.conll": "John B-PER\n\nran O\n"},
    "reading": {"train.conll": "John B-PER\n\nran O\n"},
}


def lay(data: Path, recipe: str) -> None:
    """Data of a page's placeholder, so that a dry run has something to look at."""
    if data.suffix == ".txt":
        data.write_text("one\ntwo\n")
        return
    for beginning, files in TEXTS.items():
        if recipe.startswith(beginning):
            data.mkdir()
            for name, content in files.items():
                (data / name).write_text(content)
            return
    for number, name in enumerate(("a", "b")):
        (data / "train" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (number, 0, 0)).save(data / "train" / name / "0.png")


def is_tried(given: list[str]) -> bool:
    return given[0] == "train" and "--init" not in given and given[1] != "--resume"


def test_training_commands_of_pages_start(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, too: a dry run looks at the data, and at the teacher."""
    for module, corpus in ((phrases, "cldr_pairs"), (tags, "cldr_tagged")):  # of one seed they are always the same
        monkeypatch.setattr(module, corpus, cache(getattr(module, corpus)))
    train("image-classification", TEACHER, out=tmp_path / "teacher")
    for number, command in enumerate({tuple(words(command)): None for command in commands()}):
        if is_tried([*command]):
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            for word in command:
                if word.startswith("data="):
                    lay(Path(word.removeprefix("data=")), command[1])
                if word.startswith("teacher="):
                    copytree(tmp_path / "teacher", word.removeprefix("teacher="))
            with subtests.test(" ".join(command)):
                assert cli.main([*command, "--dry-run"]) == 0, capsys.readouterr().err
