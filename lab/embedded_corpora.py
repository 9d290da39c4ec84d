"""Write the built-in corpora that are shipped, and the English names of languages: `python -m lab.embedded_corpora`."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from babel import Locale

from manyheads.data.embedded.languages import cldr_languages
from manyheads.data.embedded.phrases import cldr_pairs
from manyheads.data.embedded.shipped import FOLDER, SUFFIX
from manyheads.data.embedded.tags import cldr_tagged
from manyheads.data.readers.splits import SplitData

SEED = 1  # the default of `training.seed`
PAIRS = (("en", "de", 30_000), ("en", "fr", 30_000), ("de", "en", 30_000), ("en", "de", 1000))
TAGS = (8000, 1000)
FIELDS = (("sources", "targets"), ("inputs", "labels"), ("words", "tags"))
NAMES = Path(str(FOLDER)).parents[2] / "service" / "language_names.json"


def corpora() -> dict[str, SplitData[Any]]:
    """Generate the default corpora of the recipes, and small ones for short runs, by the names of the files."""
    found: dict[str, SplitData[Any]] = {
        f"pairs-{a}-{b}-seed{SEED}-size{size}": cldr_pairs(a, b, seed=SEED, size=size) for a, b, size in PAIRS
    }
    found[f"languages-seed{SEED}-size48000"] = cldr_languages(seed=SEED, size=48_000)
    return found | {f"tags-en-seed{SEED}-size{size}": cldr_tagged("en", seed=SEED, size=size) for size in TAGS}


def content(corpus: SplitData[Any]) -> str:
    """Return the two columns of each split as JSON."""
    columns = [
        next((getattr(split, a), getattr(split, b)) for a, b in FIELDS if hasattr(split, a) and hasattr(split, b))
        for split in (corpus.train, corpus.validation, corpus.test)
    ]
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":"))


def language_names() -> str:
    """Return the English names of languages, scripts and territories as JSON."""
    english = Locale.parse("en")
    tables = (english.languages, english.scripts, english.territories)
    return json.dumps([dict(sorted(table.items())) for table in tables], ensure_ascii=False, indent=0) + "\n"


def main() -> None:
    folder = Path(str(FOLDER))
    folder.mkdir(exist_ok=True)
    for name, corpus in corpora().items():
        packed = lzma.compress(content(corpus).encode(), preset=9 | lzma.PRESET_EXTREME)
        (folder / f"{name}{SUFFIX}").write_bytes(packed)
        print(f"{name}: {len(packed):,} bytes")
    NAMES.write_text(language_names(), encoding="utf-8")


if __name__ == "__main__":
    main()
