"""The command `manyheads detect`: find objects in images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.classify import images_in
from manyheads.cli.lines import answered, one_line, skip_image
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.output import check_file, document
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, number
from manyheads.errors import UserError
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.data.images.object_files import CocoIds
    from manyheads.tasks.detection.predictor import FoundObject

PICTURES = (".png", ".jpg")


def add(verbs: Verbs) -> None:
    verbs.add(
        "detect", _detect, "find objects in images", MODEL, JSON,
        Positional("IMAGE", "an image or a folder of images; without arguments, read one path per line of stdin. "
                   "Print a line for each object: image, label, score, and left, top, right and bottom edge in pixels",
                   "rest", nargs="*"),
        Option("--threshold", "P", "minimum score of an object (default: 0.5)", number(0, 1), 0.5),
        Option("--coco", "FILE.json", "print COCO results, with the ids of the images and categories of this COCO file",
               Path),
        Option("--out", "FILE.png", "draw the objects of a single image", Path),
        Flag("--skip-bad-lines", "skip images that cannot be read", also="--skip-bad-images"),
        PRECISION, PROCESSES,
        example="manyheads detect runs/detection scene.png --out objects.png",
    )  # fmt: skip


@in_processes
def _detect(options: argparse.Namespace) -> None:
    ids = None if options.coco is None else _ids(options)
    images = [file for path in options.rest for file in images_in(path)]
    if options.out:
        check_file(options.out, PICTURES, f"expected a name in {' or '.join(PICTURES)}", inputs=images)
        if len(images) != 1:
            raise UserError(f"--out draws one image, found {len(images):,}: give one IMAGE")
    detector = model_for("detect", options.model, options.precision)
    documents: list[JsonObject] = []
    if ids is not None and (unknown := set(detector.model.labels).difference(ids.categories)):
        raise UserError(f"{options.coco}: found no category {min(unknown)!r}, which is a label of {options.model}")

    def answers(files: list[str]) -> list[list[FoundObject] | str]:
        faults: dict[int, str] = {}
        found = detector.detect(files, threshold=options.threshold, faults=faults)
        return [faults.get(index, objects) for index, objects in enumerate(found)]

    for index, image, objects in answered(images, answers):
        if isinstance(objects, str):
            skip_image(objects, index, options)
            continue
        if options.out:
            from manyheads.analysis.figures.boxes import draw_boxes
            from manyheads.data.images.checking import open_image

            draw_boxes(options.out, open_image(image), objects)
        if ids is not None:
            if (path := Path(image).resolve()) not in ids.images:
                raise UserError(f"{options.coco}: found no image {image}")
            documents += [_coco_result(found, ids.images[path], ids.categories[found.label]) for found in objects]
        elif options.json:
            documents.append({"image": image, "objects": [found._asdict() for found in objects]})
        else:
            for found in objects:
                edges = (f"{edge:.0f}" for edge in found[2:6])
                print("\t".join([one_line(image), one_line(found.label), f"{found.score:.4f}", *edges]))
    if options.json or ids is not None:
        document(documents)


def _ids(options: argparse.Namespace) -> CocoIds:
    """Return the ids in the file of --coco. Without other images, `options.rest` gets the images of this file."""
    from manyheads.data.images.object_files import coco_ids

    ids = coco_ids(options.coco)
    options.rest = options.rest or list(map(str, ids.images))
    return ids


def _coco_result(found: FoundObject, image: object, category: object) -> JsonObject:
    """Return an object in the format of COCO results, with the box as left, top, width and height."""
    box = [found.left, found.top, found.right - found.left, found.bottom - found.top]
    return {"image_id": image, "category_id": category, "bbox": box, "score": found.score}
