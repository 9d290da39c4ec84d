"""The models of a service, by name; a new version of a directory takes the place of the one before."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from manyheads.core.tap import tapped
from manyheads.directory import FETCHED
from manyheads.errors import UserError
from manyheads.service.batching import Batcher
from manyheads.service.errors import Refused
from manyheads.service.generation_worker import Writer
from manyheads.service.logs import log, tell
from manyheads.tasks.verbs import SERVED


@dataclass(eq=False)
class Served:
    """A model that is ready, and what computes with it.

    languages  of a translator, source and target, where they are known
    stamp      of its files, when they were read
    """

    name: str
    predictor: Any
    worker: Batcher | Writer
    stamp: tuple[Any, ...]
    languages: tuple[str, str] | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def verbs(self) -> list[str]:
        return [verb for verb in SERVED if hasattr(self.predictor, verb)]

    @property
    def attends(self) -> bool:
        """Whether it has heads that can be looked at."""
        return hasattr(self.predictor, "attend") and bool(tapped(self.predictor.model))

    @property
    def kind(self) -> str:
        """What it can do with what, as "classify images"."""
        return " ".join([*self.verbs, *([self.predictor.reads] if "classify" in self.verbs else [])])


class Registry:
    """`ready(name, model)` loads a model and makes what computes with it, or raises UserError."""

    def __init__(self, models: Mapping[str, str], ready: Callable[[str, str], Served]) -> None:
        self._models, self._ready = dict(models), ready
        self._taking_over = threading.Lock()
        self._served = {name: ready(name, model) for name, model in models.items()}

    def all(self) -> list[Served]:
        return list(self._served.values())

    def of(self, name: str | None, verb: str | None) -> Served:
        """The model of that name, or the only one that can do this. Raises Refused."""
        if name is None:
            able = [served for served in self.all() if verb in served.verbs]
            if len(able) == 1:
                return able[0]
            if not able:
                raise Refused(404, f"none of the models here can {verb}", code="model_not_found")
            raise Refused(400, f"expected one of {', '.join(s.name for s in able)}", field="model", code="missing")
        if (served := self._served.get(name)) is None:
            known = ", ".join(self._served)
            raise Refused(404, f"there is no model {name[:100]!r}: known are {known}", "model", "model_not_found")
        if verb is not None and verb not in served.verbs:
            can = ", ".join(served.verbs) or "nothing"
            raise Refused(400, f"{name} cannot {verb}: it can {can}", field="model", code="wrong_model")
        return served

    def take_over(self) -> None:
        """Load the directories that have changed. What was accepted is finished by the version that accepted it; where
        the new one is faulty, the old one stays, and the log says so."""
        with self._taking_over:
            for name, old in list(self._served.items()):
                if stamp_of(self._models[name]) == old.stamp:
                    continue
                try:
                    new = self._ready(name, self._models[name])
                except Exception as error:  # any: what stays is known to work
                    log.error("new version refused", extra={"more": {"model": name, "error": str(error)}})
                    continue
                if new.kind != old.kind:
                    fault = f"is of another kind: {new.kind}, expected {old.kind}: start the service again"
                    log.error("new version refused", extra={"more": {"model": name, "error": fault}})
                    new.worker.close()
                    continue
                self._served[name] = new
                tell("new version taken over", model=name)
                threading.Thread(target=old.worker.close, daemon=True).start()

    def close(self) -> None:
        """Finish what was accepted, and no more."""
        for served in self.all():
            served.worker.close()


def warm(predictor: Any) -> None:
    """Use a model once: what is compiled and laid out at the first use is there before the first client."""
    verbs: dict[str, Callable[[], Any]] = {
        "generate": lambda: predictor.generate("", max_tokens=2, temperature=0.0),
        "translate": lambda: predictor.translate("a"),
        "tag": lambda: predictor.tag("a"),
        "fill": lambda: predictor.fill(predictor.mask),
        "answer": lambda: predictor.answer("a", "a"),
        "embed": lambda: predictor.embed(["a"]),
        "classify": lambda: predictor.classify("a" if predictor.reads == "texts" else Image.new("RGB", (32, 32))),
    }
    for verb, use in verbs.items():
        if hasattr(predictor, verb):
            with contextlib.suppress(UserError):  # such as a vocabulary without this text, or a model of pairs
                use()


def stamp_of(model: str) -> tuple[Any, ...]:
    """What changes when a directory's files are replaced. Of a name on the hub: nothing does."""
    stamp = []
    weights = sorted(path.name for path in Path(model).glob("*.safetensors*"))
    for name in (*FETCHED, "result.json", *weights):
        try:
            status = Path(model, name).stat()
        except OSError:
            continue
        stamp.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(stamp)
