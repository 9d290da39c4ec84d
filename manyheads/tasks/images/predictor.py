"""Predictors for images: labels with probabilities, attention maps, channel weights and evaluation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from manyheads import directory
from manyheads.analysis.explanations import Explanation, explain
from manyheads.analysis.figures.channel_weights import ChannelWeights, channel_gates, channel_weights
from manyheads.analysis.lens import Lens
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import Side
from manyheads.analysis.readout import Names, Readout
from manyheads.calls import checked_methods, shown
from manyheads.core.config import Config
from manyheads.core.interface import ReadsImages
from manyheads.core.recording import tapped
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.files import Columns
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import distinct_names
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.interop.labels import LabelValue
from manyheads.tasks.embedding import Embedded, Pool, embed_pixels, vectors_of
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.images.lens import image_states, lens_fault
from manyheads.tasks.images.loading import (
    FILES,
    ImageInput,
    Images,
    compute_images,
    open_plain,
    preprocessing_of,
    resize_positions,
)
from manyheads.tasks.images.objective import EVALUATION_BATCH, evaluation_loader, image_logits, image_metrics
from manyheads.tasks.inputs import rows_of
from manyheads.tasks.patching import Patches
from manyheads.tasks.predictor import TrainedModel
from manyheads.tasks.targets import SHOWN_LABELS, Label, Prediction, Shares, shares, trained_target

logger = logging.getLogger(__name__)


@checked_methods
class ImageEncoder(TrainedModel[ReadsImages[Config]]):
    """Image model without a classification head, as returned by `manyheads.load`.

    It computes attention weights and channel weights of images, but makes no predictions.
    """

    verbs: ClassVar[tuple[str, ...]] = ("embed", "attend")
    reads: ClassVar = "images"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self.preprocessing = preprocessing_of(loaded)
        self.model = resize_positions(self.model, self.preprocessing.size).to(compute.device).eval()

    @property
    def labels(self) -> tuple[LabelValue, ...]:
        """Names of the classes. If several classes have the same name, a number is added to each."""
        return distinct_names(self.model.labels)

    @property
    def supported(self) -> tuple[str, ...]:
        attends = bool(tapped(self.model)) or self.has_channel_weights
        works = {"attend": attends, "lens": not lens_fault(self.model)}
        return tuple(verb for verb in super().supported if works.get(verb, True))

    @property
    def has_channel_weights(self) -> bool:
        """Return True for a network that weighs channels, such as squeeze-and-excitation, and has no attention maps."""
        return not tapped(self.model) and bool(channel_gates(self.model))

    def attend(
        self,
        image: str | Path | Image.Image,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
    ) -> AttentionMaps | ChannelWeights:
        """Return the attention weights of every head in every layer for an image, given as a file or as a Pillow image.

        For a network that weighs channels instead (squeeze-and-excitation, SKNet, ResNeSt), the method returns the
        channel weights of the network, and `layers` are indices of its blocks, or of their branches.

        layers, heads  indices of the layers and heads to return. By default, all are returned

            >>> vit.attend("digit.png", layers=[0])["self"][0].weights.ndim
            4
        """
        pixels, picture, title = self._read(image)
        if not self.has_channel_weights:
            maps = self._attention_maps([pixels], None, title, MapOptions(axis, layers, heads), picture=picture)
            return replace(maps, prediction=self._prediction(image))
        if heads is not None or axis is not None:
            raise UserError(f"{self.path}: channel weights have neither heads nor an axis: give only layers")
        weights = self.channel_weights([pixels], [title], title=title, picture=picture)
        return weights if layers is None else weights.of(layers)

    def _read(self, image: str | Path | Image.Image) -> tuple[Tensor, NDArray[np.uint8], str]:
        """Return the preprocessed image as a batch (1, C, Y, X), the image as the model sees it, and its name."""
        plain = open_plain(image)
        title = "an image" if isinstance(image, Image.Image) else Path(image).name
        picture = np.asarray(self.preprocessing.framed(plain), dtype=np.uint8)
        return torch.from_numpy(self.preprocessing.array(plain))[None], picture, title

    def _prediction(self, image: ImageInput) -> Shares:
        """Return the most probable labels of an image, which are shown next to its attention maps.

        The result is empty for a model without a classification head.
        """
        return ()

    def embed(
        self, images: ImageInput | Images, *, layer: int | None = None, pool: Pool | None = None,
        as_array: bool = False,
    ) -> Any:  # fmt: skip
        """Return the embedding of every image (file or Pillow image), `Embedded`: a vector (D,) of unit length.

        layer     index of the layer whose output is pooled. By default, the last layer
        pool      "mean" for the mean over all tokens; "first" for the first token, the class token; "tokens" for the
                  states of all tokens, (T, D), which are not scaled. By default, the features that a classification
                  head reads
        as_array  true: return the vectors alone, as an array (N, D), or (D,) for a single image

            >>> vit.embed("digit.png").vector.shape
            (16,)
        """
        items, single = rows_of(images, "image", FILES)
        found = self.embed_arrays((self.preprocessing.array(open_plain(item)) for item in items), layer, pool)
        return vectors_of(found, single, as_array)

    def embed_arrays(
        self, arrays: Iterable[NDArray[np.float32]], layer: int | None = None, pool: Pool | None = None
    ) -> list[Embedded]:
        """Return the embeddings of images (C, Y, X), which were preprocessed by `preprocessing.array`."""
        remaining, rows = iter(arrays), list[Embedded]()
        while group := list(islice(remaining, EVALUATION_BATCH)):
            rows += embed_pixels(self, self._batch(group), layer, pool)
        return rows

    def _batch(self, arrays: Sequence[NDArray[np.float32]]) -> Tensor:
        """Return preprocessed images as a batch (B, C, Y, X). Raise ItemError for another array."""
        shape = (self.preprocessing.channels, self.preprocessing.size, self.preprocessing.size)
        for index, array in enumerate(arrays):
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.float32:
                raise ItemError(index, f"is {shown(array)}: expected a float32 array {shape}", f"image {index + 1}")
        return torch.from_numpy(np.stack(arrays))

    def channel_weights(
        self, batches: Iterable[Tensor], rows: Sequence[str], row_of: Sequence[int] | NDArray[np.int64] | None = None,
        *, title: str = "", picture: NDArray[np.uint8] | None = None,
    ) -> ChannelWeights:  # fmt: skip
        """Return the mean channel weights of each block over each group of images.

        batches  batches of images, (B, C, Y, X) each
        rows     name of each group, such as a class
        row_of   index of the group of each image. By default, each image is a separate group
        title    description of the images for the figure
        picture  single image to show next to the weights
        """
        batches_on_device = (batch.to(self.compute.device) for batch in batches)
        with self.compute.autocast():
            return channel_weights(
                self.model, batches_on_device, rows, row_of, name=str(self.path), title=title, picture=picture
            )


@checked_methods
class ImageClassifier(ImageEncoder, Patches):
    """Image classifier with labels, as returned by `manyheads.load`."""

    verbs: ClassVar = ("classify", "embed", "attend", "lens", "explain", "patch", "evaluate")

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        if not loaded.model.labels:
            raise UserError(f"{loaded.path}: found no classification head: train this model for a task with --init")
        super().__init__(loaded, compute)
        self.target = trained_target(loaded, record_of(loaded.path))
        self.reports = self.target.reports
        self.threshold = self.target.threshold if self.target.kind == "multi-label" else None

    @property
    def labels(self) -> tuple[LabelValue, ...]:
        """Class names, in the type that the labels have in the training data."""
        return self.target.values

    @overload
    def classify(
        self, images: ImageInput, *, top: int | None = None, threshold: float | None = None
    ) -> list[Label]: ...
    @overload
    def classify(
        self, images: Images, *, top: int | None = None, threshold: float | None = None,
        faults: dict[int, str] | None = None,
    ) -> list[list[Label]]: ...  # fmt: skip
    def classify(
        self, images: ImageInput | Images, *, top: int | None = None, threshold: float | None = None,
        faults: dict[int, str] | None = None,
    ) -> list[Label] | list[list[Label]]:  # fmt: skip
        """Return the labels of every image, most probable first. Images are given as files or Pillow images.

        top        number of labels to return. By default, one label; for a multi-label model, all labels above the
                   threshold
        threshold  minimum probability of a label, for a multi-label model. By default, the threshold of the training
                   run, or 0.5
        faults     dictionary to which an error message is added for each image that cannot be read, by image index. The
                   result then has no labels for this image. By default, such an image raises UserError

            >>> len(vit.classify("digit.png", top=3))
            3
        """
        self.target.expect("labels", self.path)
        return self.target.typed(*self._predict(images, top, threshold, faults))

    @overload
    def predict(self, images: ImageInput) -> float: ...
    @overload
    def predict(self, images: Images) -> list[float]: ...
    def predict(self, images: ImageInput | Images) -> float | list[float]:
        """Return the number that a regression model predicts for every image."""
        self.target.expect("regression", self.path)
        return self.target.numbers(*self._predict(images))

    def predictions(
        self, images: ImageInput | Images, top: int | None = None, threshold: float | None = None, *,
        faults: dict[int, str] | None = None,
    ) -> Prediction | list[Prediction]:  # fmt: skip
        """Return the labels of every image by name, most probable first, or its number, as `predict` does."""
        found, single = self._predict(images, top, threshold, faults)
        return found[0] if single else found

    def lens(self, image: str | Path | Image.Image, *, top: int = 5) -> Lens:
        """Return the logit lens of a ViT: the labels that each layer would give the class token and each patch.

        top  number of labels for each layer and position, most probable first, at most 1000

        Raises UserError for a model whose head does not read a class token, or that predicts several labels or numbers.

            >>> lens = vit.lens("digit.png")
            >>> lens.ranks.shape  # (layers, class token and patches)
            (3, 17)
        """
        if self.target.kind != "classes":
            raise UserError(f"{self.path}: the lens needs a model that predicts one of several labels")
        pixels, picture, title = self._read(image)
        with self.compute.autocast():
            states, grid = image_states(self.model, pixels.to(self.compute.device), self.path)
            tokens, name = Side.patches(grid[:2], grid.tokens).tokens, Names.of_labels(self.target.labels).name
            return Lens.of(states, str(self.path), title, tokens, name, top, grid=grid, picture=picture)

    def readout(self, image: str | Path | Image.Image) -> Readout:
        """Return the prediction of the label of an image, given as a file or as a Pillow image, for an analysis.

        >>> vit.readout("digit.png").side.grid
        (4, 4)
        """
        pixels, picture, title = self._read(image)
        grids = self.model.grids
        return Readout(
            self.model, (pixels.to(self.compute.device),), lambda logits: logits, Names.of_labels(self.target.labels),
            None, None if grids is None else Side.patches(grids[0][:2], grids[0].tokens, grids[0].cover),
            str(self.path), title, picture, self.target.kind,
        )  # fmt: skip

    def explain(
        self, image: str | Path | Image.Image, *, target: str | None = None, method: str | None = None,
        steps: int | None = None,
    ) -> Explanation:  # fmt: skip
        """Return the contribution of each patch or pixel of an image to the prediction of a label.

        target  name of the label. By default, the model's prediction
        method  name of the method, see `manyheads.analysis.explanations`. By default, "relevance" for a ViT, "grad-cam"
                for a convolutional network, and "integrated-gradients" for other networks
        steps   number of points of integrated gradients. By default, 50

            >>> vit.explain("digit.png").values.shape
            (4, 4)
        """
        with self.compute.settings():
            return explain(self.readout(image), target=target, method=method, steps=steps)

    def _prediction(self, image: ImageInput) -> Shares:
        top = None if self.target.kind == "regression" else min(SHOWN_LABELS, len(self.target.labels))
        return shares(self.predictions(image, top))

    def _predict(
        self, images: ImageInput | Images, top: int | None = None, threshold: float | None = None,
        faults: dict[int, str] | None = None,
    ) -> tuple[list[Prediction], bool]:  # fmt: skip
        """Return a prediction for every image, and True for a single image."""
        self.target.check(top, threshold)
        items, single = rows_of(images, "image", FILES)
        none: Prediction = math.nan if self.target.kind == "regression" else []
        rows = self._rows_of_logits(items, faults)
        valid = [row for row in rows if row is not None]
        found = iter(self.target.predictions(torch.stack(valid), top, threshold) if valid else [])
        return [none if row is None else next(found) for row in rows], single

    def predict_proba(self, images: ImageInput | Images) -> NDArray[np.float32]:
        """Return the probability of each of `labels` for every image, (N, L), or (L,) for a single image.

        >>> vit.predict_proba(["digit.png"]).shape == (1, len(vit.labels))
        True
        """
        self.target.expect("labels", self.path)
        items, single = rows_of(images, "image", FILES)
        rows = [row for row in self._rows_of_logits(items, None) if row is not None]
        probabilities = self.target.probabilities(torch.stack(rows) if rows else torch.empty(0, len(self.labels)))
        return probabilities[0] if single else probabilities

    def _rows_of_logits(self, items: Sequence[ImageInput], faults: dict[int, str] | None) -> list[Tensor | None]:
        """Return the logits (L,) of every image; None for an image whose error message is added to `faults`."""
        found = compute_images(items, EVALUATION_BATCH, self.preprocessing.array, self._logits, faults)
        return [found.get(index) for index in range(len(items))]

    def _logits(self, arrays: Sequence[NDArray[np.float32]]) -> Tensor:
        """Return the logits (B, L) of a batch of preprocessed images."""
        model, batch = self.compiled, self._batch(arrays)
        with torch.inference_mode(), model.compute.autocast():
            return model(batch.to(model.compute.device)).float().cpu()

    def classify_arrays(
        self, arrays: Sequence[NDArray[np.float32]], *, top: int | None = None, threshold: float | None = None
    ) -> list[Prediction]:
        """Return the predictions for a batch of images (C, Y, X), which were preprocessed by `preprocessing.array`."""
        if not (images := list(arrays)):
            return []
        return self.target.predictions(self._logits(images), top, threshold)

    def evaluate(self, data: object = None) -> EvaluationResult:
        """Predict the labels or numbers of the images in a data set, and compare them with the correct ones.

        data  an `ImageData`, or data that the method `outcome` accepts
        """
        if not isinstance(data, ImageData):
            return self.outcome(data)
        loader = evaluation_loader(data, self.target, self.preprocessing)
        model = self.compiled
        logits = image_logits(model.module, loader, model.compute)  # (N, L)
        places = [data.place(i) for i in range(len(data))]
        metrics = image_metrics(self.target, logits, torch.from_numpy(loader.labels))
        return replace(self.target.evaluation(places, data, logits, metrics), image=data.image)

    def outcome(
        self, data: object = None, *, skip_bad_lines: bool = False, columns: Columns | None = None
    ) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on other data.

        data     data in any image format that training reads, or a directory with a test split
        columns  names of the columns in `data`, if it is a table; None: the names in the training data
        """
        return self.evaluate(
            scored_data(
                self.path, data, ImageSource(), skip_bad_lines=skip_bad_lines, labels=self.target.labels,
                columns=columns, target=self.target.kind,
            )
        )  # fmt: skip
