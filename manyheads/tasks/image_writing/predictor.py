"""Predictor for iGPT: completion of images, embeddings, attention maps and bits per pixel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from manyheads import directory
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import Side
from manyheads.calls import checked_methods, shown
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.palette import Palette
from manyheads.data.images.source import ImageSource
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.generation import Sampling, sample
from manyheads.models.igpt import IGPT
from manyheads.tasks.embedding import Embedded, Pool, embed_pixels, vectors_of
from manyheads.tasks.evaluation import EvaluationResult, scored_data
from manyheads.tasks.image_writing.objective import Ids, batch_of, pixel_losses
from manyheads.tasks.images.loading import FILES, ImageInput, Images, open_plain
from manyheads.tasks.images.objective import EVALUATION_BATCH
from manyheads.tasks.inputs import rows_of
from manyheads.tasks.predictor import TrainedModel
from manyheads.training.distributed_map import distributed_map
from manyheads.training.record import Metrics

GENERATED_IMAGES = 64  # number of images in a batch during generation


@checked_methods
class ImageWriter(TrainedModel[IGPT]):
    """iGPT with its colors, as returned by `manyheads.load`. It completes images pixel by pixel."""

    verbs: ClassVar = ("generate", "embed", "attend", "evaluate")
    reads: ClassVar = "images"
    has_channel_weights: ClassVar = False  # as of other predictors that read images

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self.preprocessing = _palette_of(loaded)

    def generate(
        self, images: ImageInput | Images, *, keep: float = 0.5, samples: int = 1, temperature: float = 1.0,
        top_k: int | None = None, top_p: float | None = None, seed: int = 0,
    ) -> Any:  # fmt: skip
        """Return `samples` completions of every image: a list of Pillow images, in the size and colors of the model.

        keep     fraction of the pixels that are kept, row by row from the top; the model writes the others
        samples  number of completions of each image
        seed     seed of the first completion, which increases by one for each further one

        The other arguments are the fields of `Sampling`.

            >>> [completion] = igpt.generate("digit.png", keep=0.5)
            >>> completion.size
            (4, 4)
        """
        sampling, pixels, model = Sampling(temperature, top_k, top_p), self.model.config.max_positions, self.compiled
        if not 0 <= keep < 1 or samples < 1 or seed < 0:
            raise UserError(f"keep is {keep!r}, samples {samples!r} and seed {seed!r}: expected 0 to below 1, at least"
                            " 1, and at least 0")  # fmt: skip
        items, single = rows_of(images, "image", FILES)
        kept, palette = int(keep * pixels), self.preprocessing
        starts = [palette.array(open_plain(item))[:kept].tolist() for item in items for _ in range(samples)]

        def run(first: int) -> list[Image.Image]:
            rows = starts[first : first + GENERATED_IMAGES]
            steps = sample(
                model.start, model.step, [[self.model.start_token, *row] for row in rows], sampling, context=pixels,
                limits=[pixels - kept] * len(rows), seeds=range(seed + first, seed + first + len(rows)),
            )  # fmt: skip
            with model.compute.autocast():
                for row, color in chain.from_iterable(steps):
                    rows[row].append(color)
            return [palette.picture(np.array(row)) for row in rows]

        parts = distributed_map(range(0, len(starts), GENERATED_IMAGES), run)
        done = list(chain.from_iterable(parts))
        found = [done[i : i + samples] for i in range(0, len(done), samples)]
        return found[0] if single else found

    def embed(
        self, images: ImageInput | Images, *, layer: int | None = None, pool: Pool | None = None,
        as_array: bool = False,
    ) -> Any:  # fmt: skip
        """Return the embedding of every image, `Embedded`: a vector (D,) of unit length, the mean over the pixels.

        The arguments are those of `ImageEncoder.embed`. The middle layers describe an image best (Chen 2020, figure 2).

            >>> igpt.embed("digit.png", layer=0).vector.shape
            (16,)
        """
        items, single = rows_of(images, "image", FILES)
        found = self.embed_arrays((self.preprocessing.array(open_plain(item)) for item in items), layer, pool)
        return vectors_of(found, single, as_array)

    def embed_arrays(self, arrays: Iterable[Ids], layer: int | None = None, pool: Pool | None = None) -> list[Embedded]:
        """Return the embeddings of images (N,) that were preprocessed by `preprocessing.array`."""
        ids, shape = list(arrays), (self.model.config.max_positions,)
        for index, row in enumerate(ids):
            if not isinstance(row, np.ndarray) or row.shape != shape or row.dtype != np.int64:
                raise ItemError(index, f"is {shown(row)}: expected color ids {shape}, int64", f"image {index + 1}")
        groups = (np.stack(ids[i : i + EVALUATION_BATCH]) for i in range(0, len(ids), EVALUATION_BATCH))
        batches = (batch_of(self.model, group).read for group in groups)
        return [row for batch in batches for row in embed_pixels(self, batch, layer, pool or "mean")]

    def attend(
        self, image: str | Path | Image.Image, *, layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None, axis: str | None = None,
    ) -> AttentionMaps:  # fmt: skip
        """Return the attention weights of every head in every layer: which earlier pixels predict each pixel.

        layers, heads  indices of the layers and heads to return. By default, all are returned

            >>> igpt.attend("digit.png", layers=[0])["self"][0].keys.tokens[0]
            'start'
        """
        ids = self.preprocessing.array(open_plain(image))
        side, title = self.preprocessing.preprocessing.size, "an image"
        title = title if isinstance(image, Image.Image) else Path(image).name
        picture = np.asarray(self.preprocessing.picture(ids))
        maps = self._attention_maps(
            [batch_of(self.model, ids[None]).read], None, title, MapOptions(axis, layers, heads), picture=picture
        )
        # The model reads the start token before the first pixel, and does not read the last pixel.
        queries, keys = Side.patches((side, side)), Side.patches((side, side), ("start",))
        rows = [
            replace(layer, weights=np.pad(layer.weights, [(0, 0)] * 3 + [(0, 1)]), queries=queries, keys=keys)
            for layer in maps["self"]
        ]
        return replace(maps, axes={"self": rows})

    def evaluate(self, data: object = None) -> EvaluationResult:
        """Score the pixels of the images in a data set: `loss` in nats per pixel, and `bits_per_pixel`.

        data  an `ImageData`, or data that the method `outcome` accepts
        """
        if not isinstance(data, ImageData):
            return self.outcome(data)
        losses = pixel_losses(self.model, ids_of(self.preprocessing, data), self.compute)
        bits = losses.mean(1) / math.log(2)
        signature = f"{losses.size:,} pixels of {len(data):,} images, {len(self.preprocessing.colors)} colors"
        metrics: Metrics = {
            "loss": {"value": float(losses.mean()), "signature": f"nats per pixel|{signature}"},
            "bits_per_pixel": {"value": float(bits.mean()), "signature": signature},
        }
        places, outputs = [data.place(i) for i in range(len(data))], [f"{size:.3f} bits per pixel" for size in bits]
        return EvaluationResult(
            places, outputs, [""] * len(places), (-bits).tolist(), metrics, unit="log2 probability a pixel",
            image=data.image, data=data,
        )  # fmt: skip

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test images of its training run, or on other data that training reads."""
        return self.evaluate(scored_data(self.path, data, ImageSource(), skip_bad_lines=skip_bad_lines))


def ids_of(palette: Palette, data: ImageData) -> Ids:
    """Return the color ids of all images of a data set, (M, N)."""
    return np.stack([palette.array(data.image(i)) for i in range(len(data))])


def _palette_of(loaded: directory.Loaded) -> Palette:
    """Return the colors of a model directory. Raise UserError if they are missing, or do not fit the model."""
    try:
        palette = Palette.from_dict(loaded.preprocessing or {})
    except (ValueError, TypeError) as error:
        raise UserError(f"{loaded.path}: {error}") from None
    found = (len(palette.colors), palette.preprocessing.size**2)
    expected = (loaded.model.config.vocab - 1, loaded.model.config.max_positions)
    if found != expected:
        raise UserError(
            f"{loaded.path}: preprocessor_config.json has {found[0]:,} colors and {found[1]:,} pixels, the model"
            f" {expected[0]:,} and {expected[1]:,}: copy both from one model"
        )
    return palette
