"""Random weights and small data for the tests of `lab.weights`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from manyheads import directory
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.text.tokenizers import train_byte_bpe, train_wordpiece
from manyheads.models.presets import build, preset

TEXT = "Studying Deep-Learning is a great way to learn about the world around you . It was published ."
# Each relation on the slides occurs.
TREES = """\
# newdoc id = a
1\tAnna\t_\tPROPN\t_\t_\t2\tnsubj\t_\tEntity=(1-person)
2\tlost\t_\tVERB\t_\t_\t0\troot\t_\t_
3\ther\t_\tPRON\t_\t_\t4\tnmod:poss\t_\tEntity=(2-object(1-person)
4\tkeys\t_\tNOUN\t_\t_\t2\tobj\t_\tEntity=2)
5\tin\t_\tADP\t_\t_\t7\tcase\t_\t_
6\tthe\t_\tDET\t_\t_\t7\tdet\t_\t_
7\tgarden\t_\tNOUN\t_\t_\t2\tobl\t_\t_

1\tThey\t_\tPRON\t_\t_\t3\tnsubj:pass\t_\tEntity=(2-object)
2\twere\t_\tAUX\t_\t_\t3\taux:pass\t_\t_
3\tfound\t_\tVERB\t_\t_\t0\troot\t_\t_
"""


def write_models(folder: Path, *, tiny: bool) -> dict[str, str]:
    """Write directories of the four models with random weights, and return them by key.

    tiny  if True, small models with as many layers and heads; if False, models of the published sizes, with two labels
    """
    torch.manual_seed(1)
    text = {"width": 24, "layers": 12, "heads": 12, "vocab": 300} if tiny else {}
    gpt, bert = ({"end": 0}, {"feed_forward": 48}) if tiny else ({}, {})
    small = {"width": 24, "layers": 1, "heads": 2, "feed_forward": 48, "image_size": 32, "labels": ("cat", "dog")}
    image = small if tiny else {"labels": ("cat", "dog")}
    paths = {key: str(folder / key.lower()) for key in ("GPT2", "BERT", "VIT", "DEIT")}
    pieces = train_byte_bpe([TEXT] * 9, 300)
    directory.save(paths["GPT2"], build(preset("gpt2/124m", **text, **gpt)), pieces)
    words = train_wordpiece([TEXT, TREES] * 9, 300)
    directory.save(paths["BERT"], build(preset("bert/base-uncased", **text, **bert)), words)
    for key, name in ("VIT", "vit/b16"), ("DEIT", "deit/b16"):
        model = build(preset(name, **image))
        kept = Preprocessing.of_channels(model.image_size, 3, mean=(0.5,), std=(0.5,)).as_dict()
        directory.save(paths[key], model, preprocessing=kept)
    return paths


def write_data(folder: Path, classes: int) -> dict[str, str]:
    """Write a treebank, two tables of GLUE, and an image for each of some classes; return them by key."""
    paths = {key: folder / key.lower() for key in ("TREEBANK", "SST2", "MRPC", "IMAGENET")}
    paths["TREEBANK"].write_text(TREES + "\n", encoding="utf-8")
    sentences = [f"{TEXT.split()[i % 9]} {i}\t{i % 2}\n" for i in range(50)]
    pairs = [f"{TEXT.split()[i % 9]} {i}\t{i}\t{i % 2}\n" for i in range(50)]
    for key, header, rows in (
        ("SST2", "sentence\tlabel\n", sentences),
        ("MRPC", "sentence1\tsentence2\tlabel\n", pairs),
    ):
        paths[key].mkdir()
        for split, part in {"train": rows[:30], "dev": rows[30:40], "test": rows[40:]}.items():
            (paths[key] / f"{split}.tsv").write_text(header + "".join(part), encoding="utf-8")
    random = np.random.default_rng(1)
    for number in range(classes):
        folder = paths["IMAGENET"] / f"n{number:08}"
        folder.mkdir(parents=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / "1.png")
    return {key: str(path) for key, path in paths.items()}
