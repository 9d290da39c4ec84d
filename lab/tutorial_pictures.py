"""`python -m lab.tutorial_pictures PAIR IMDB`: draw two pictures of docs/tutorials/pictures from finished runs.

PAIR  a run of `python -m papers.nonlocal_net pair`: where a position of the first frame looks (pair-nonlocal-3)
IMDB  a run of `imdb/corrected`: at which words of a sentence its words look (imdb-128-learned-2)
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import manyheads
from lab.vit_photographs import stacked
from manyheads.data.images.labeled_images import digits
from manyheads.tasks.classification.predictor import Classifier
from papers.nonlocal_net.arrows import draw, strongest_arrows
from papers.nonlocal_net.task import clip_tensor, load

PICTURES = Path(__file__).parents[1] / "docs" / "tutorials" / "pictures"
SENTENCE = "The first half was slow and boring, but the ending was wonderful."
SIDE, DIGIT = 16, 8
PLACES = (1, 1), (7, 7)  # row and column of the digit in each frame
AT = (0, 5, 7)  # frame, row and column of the position that looks


def draw_arrows(run: str, out: Path) -> None:
    """Draw the arrows of two clips, one below the other: the same digit twice, and two digits."""
    classifier, held = load(run), digits(1).test
    assert held is not None
    shown = [np.asarray(held.items[held.labels.index(label)].source) for label in ("3", "7")]
    with TemporaryDirectory() as folder:
        sheets = []
        for title, second in (("the same digit", 0), ("two digits", 1)):
            clip = np.zeros((1, 2, SIDE, SIDE), dtype=np.uint8)
            for frame, (number, (y, x)) in enumerate(zip((0, second), PLACES, strict=True)):
                clip[0, frame, y : y + DIGIT, x : x + DIGIT] = shown[number]
            pixels = clip_tensor(clip, classifier.preprocessing)
            probability = classifier.model(pixels).softmax(-1)[0, classifier.target.labels.index("same")]
            arrows = strongest_arrows(classifier.model, pixels, AT, layer=1)
            across = float(arrows.weights[arrows.ends[:, 0] == 1].sum())
            print(f"{title}: probability of same {probability:.3f}, weights of arrows to frame 1 {across:.1%}")
            draw(arrows, Path(folder) / f"{second}.png", title=title)
            sheets.append(Image.open(Path(folder) / f"{second}.png").convert("RGB"))
    stacked(sheets).quantize(128).save(out, optimize=True)


def draw_words(run: str, out: Path) -> None:
    """Draw the attention of both heads among the words of a sentence."""
    classifier = manyheads.load(run)
    assert isinstance(classifier, Classifier)
    layer = classifier.attend(SENTENCE).words()["self"][0]
    words = layer.keys.tokens
    print(classifier.classify(SENTENCE)[0])
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for head, panel in enumerate(figure.subplots(1, 2)):
        image = panel.imshow(layer.weights[0, head], cmap="Blues", vmin=0, vmax=float(layer.weights.max()))
        panel.set_xticks(range(len(words)), words, rotation=90)
        panel.set_yticks(range(len(words)), words)
        panel.set_title(f"head {head}")
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label=f"attention weight (equal weights: {1 / len(words):.2f})")
    figure.savefig(out, dpi=110)
    Image.open(out).convert("RGB").quantize(128).save(out, optimize=True)


if __name__ == "__main__":
    pair, imdb = sys.argv[1:]
    draw_arrows(pair, PICTURES / "nonlocal-pair.png")
    draw_words(imdb, PICTURES / "imdb-words.png")
