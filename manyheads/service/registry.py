"""Registry of the models that a service offers, by name.

If the files in a model's directory change, the service loads the new version of the model.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from manyheads.core.recording import tapped
from manyheads.directory import FETCHED
from manyheads.errors import UserError
from manyheads.service.batching import Batcher
from manyheads.service.errors import Refused
from manyheads.service.generation_worker import GenerationWorker
from manyheads.service.logs import log, log_event
from manyheads.tasks.loading import LoadedModel
from manyheads.tasks.verbs import SERVED

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]  # name, inode, size and modification time of each file


@dataclass(eq=False)
class Served:
    """Loaded model with its worker thread.

    languages  source and target language of a translator, if known
    stamp      sizes and modification times of the model's files when they were loaded, see `stamp_of`
    """

    name: str
    predictor: LoadedModel
    worker: Batcher | GenerationWorker
    stamp: Stamp
    languages: tuple[str, str] | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def verbs(self) -> list[str]:
        return offered(self.predictor)

    @property
    def attends(self) -> bool:
        """True if the model has attention heads whose maps can be shown."""
        return "attend" in self.predictor.verbs and bool(tapped(self.predictor.model))

    @property
    def kind(self) -> str:
        """Commands that the model supports, with the type of input for "classify", such as "classify images"."""
        return " ".join([*self.verbs, *([self.predictor.reads] if "classify" in self.verbs else [])])


class Registry:
    """Registry of the loaded models.

    models  directory of each model, by name
    ready   function of (name, directory) that loads a model and starts its worker thread. Raises UserError if the
            model cannot be loaded
    """

    def __init__(self, models: Mapping[str, str], ready: Callable[[str, str], Served]) -> None:
        self._models, self._ready = dict(models), ready
        self._reloading = threading.Lock()
        self._served = {name: ready(name, model) for name, model in models.items()}

    def all(self) -> list[Served]:
        return list(self._served.values())

    def of(self, name: str | None, verb: str | None) -> Served:
        """Return the model with the given name. If `name` is None, return the only model that supports a command.

        verb  name of the command, such as "classify". If None, any model is accepted

        Raises Refused if no model matches, or if several models match.
        """
        if name is None:
            candidates = [served for served in self.all() if verb in served.verbs]
            if len(candidates) == 1:
                return candidates[0]
            if not candidates:
                raise Refused(404, f"the service has no model that can {verb}", code="model_not_found")
            raise Refused(
                400, f"expected one of {', '.join(s.name for s in candidates)}", field="model", code="missing"
            )
        if (served := self._served.get(name)) is None:
            known = ", ".join(self._served)
            raise Refused(404, f"found no model {name[:100]!r}: expected one of {known}", "model", "model_not_found")
        if verb is not None and verb not in served.verbs:
            supported = ", ".join(served.verbs) or "nothing"
            raise Refused(400, f"{name} cannot {verb}: it can only {supported}", field="model", code="wrong_model")
        return served

    def reload(self) -> None:
        """Reload all models whose files have changed.

        The old version of a model finishes the requests that it accepted. If a new version is invalid, the old one
        remains in use, and the error is logged.
        """
        with self._reloading:
            for name, old in list(self._served.items()):
                if stamp_of(self._models[name]) == old.stamp:
                    continue
                try:
                    new = self._ready(name, self._models[name])
                # Catch and log any error, because the old version of the model still works.
                except Exception as error:
                    log.error("rejected new version", extra={"more": {"model": name, "error": str(error)}})
                    continue
                if new.kind != old.kind:
                    fault = f"expected {old.kind}, found {new.kind}: restart the service to use the new version"
                    log.error("rejected new version", extra={"more": {"model": name, "error": fault}})
                    new.worker.close()
                    continue
                self._served[name] = new
                log_event("loaded new version", model=name)
                threading.Thread(target=old.worker.close, daemon=True).start()

    def close(self) -> None:
        """Finish the accepted requests, and stop the worker threads of all models."""
        for served in self.all():
            served.worker.close()


# name of each command that the service offers -> function that runs the command on a short example, to warm up a model
WARM_UP: dict[str, Callable[[LoadedModel], object]] = {
    "generate": lambda predictor: predictor.generate("", max_tokens=2, temperature=0.0),
    "translate": lambda predictor: predictor.translate("a"),
    "tag": lambda predictor: predictor.tag("a"),
    "fill": lambda predictor: predictor.fill(predictor.mask),
    "answer": lambda predictor: predictor.answer("a", "a"),
    "classify": lambda predictor: predictor.predictions(
        ["a" if predictor.reads == "texts" else Image.new("RGB", (32, 32))]
    ),
    "detect": lambda predictor: predictor.detect(Image.new("RGB", (32, 32))),
    "rerank": lambda predictor: predictor.rerank("a", ["a"]),
    "embed": lambda predictor: predictor.embed([Image.new("RGB", (32, 32)) if predictor.reads == "images" else "a"]),
}


def offered(predictor: LoadedModel) -> list[str]:
    """Return the commands that the service offers for a model. It continues texts, but does not complete images."""
    completes = ("generate",) if predictor.reads == "images" else ()
    return [verb for verb in SERVED if verb in predictor.supported and verb not in completes]


def warm_up(predictor: LoadedModel) -> None:
    """Run a model once on a short example, so that the first client does not wait for compilation and memory
    allocation.
    """
    for verb, use in WARM_UP.items():
        if verb in offered(predictor):
            # Ignore the error of a model that cannot read the example: its vocabulary may lack the words, or it may
            # need pairs of texts.
            with contextlib.suppress(UserError):
                use(predictor)


def stamp_of(model: str) -> Stamp:
    """Return names, sizes and modification times of a model's files, which change if a file is replaced.

    The result is empty for a model of the Hugging Face Hub, which is not reloaded.
    """
    stamp = []
    for path in sorted(
        {path for name in (*FETCHED, "result.json", "*.safetensors*") for path in Path(model).glob(name)}
    ):
        try:
            status = path.stat()
        except OSError:
            continue
        stamp.append((path.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(stamp)
