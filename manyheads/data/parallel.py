"""Parallel text: where the two languages lie, read strictly, with every fault named by file and line.

One corpus is given as a string:
  `prefix`          prefix.de + prefix.en, one sentence a line
  `a.de,b.en`       two files, the source first
  `corpus.tsv`      two columns, source then target; or any columns under a header line that names them
  `corpus.jsonl`    {"de": ..., "en": ...}, {"source": ..., "target": ...} or {"translation": {"de": ..., "en": ...}}
  `corpus.parquet`  the same names as columns
A directory holds one such corpus per split: `train`, `val`|`valid`|`validation`|`dev`, `test*`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.splits import SURROGATE, UTF8, Splits, half_character, held_out, lines_of, splits_among

_TABLES = (".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Pairs:
    """Aligned sentences. `skips` counts the rows left out, by file and reason."""

    sources: list[str]
    targets: list[str]
    files: list[Path] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.sources) == len(self.targets)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"Pairs({len(self):,} pairs, {self.skipped:,} skipped, files={[str(f) for f in self.files]})"

    @property
    def skipped(self) -> int:
        return sum(self.skips.values())

    def subset(self, rows: Sequence[int]) -> Pairs:
        return replace(self, sources=[self.sources[i] for i in rows], targets=[self.targets[i] for i in rows])


class _Row(NamedTuple):
    place: str  # file:line of the row, or of its faulty side
    source: str
    target: str
    fault: str = ""  # why the row cannot be used
    remedy: str = ""


def read_parallel(path: str | Path, source: str, target: str, *, skip_bad_lines: bool = False) -> Pairs:
    """Reads one corpus (forms above); `source` and `target` are language codes, used as suffixes or column names.

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy. `skip_bad_lines` leaves faulty
    rows out and counts them. Pairs blank on both sides carry nothing: they are always left out and counted.
    """
    files = _locate(str(path), source, target)
    for file in files:
        if file.stat().st_size == 0:
            raise ValueError(f"{file}: the file is empty; expected one sentence or row a line")
    rows = _two_files(*files) if len(files) == 2 else _READERS[files[0].suffix](files[0], source, target)
    sources, targets = [], []
    skips: Counter[str] = Counter()
    for row in rows:
        blank_source, blank_target = not row.source.strip(), not row.target.strip()
        if not row.fault and blank_source != blank_target:
            side, file = (source, files[0]) if blank_source else (target, files[-1])
            place = f"{file}:{row.place.rpartition(':')[2]}"
            row = row._replace(place=place, fault=f"blank on the {side} side only", remedy="fill in or remove the pair")
        if row.fault and not skip_bad_lines:
            raise ValueError(f"{row.place}: {row.fault}; {row.remedy}, or skip such lines with --skip-bad-lines")
        if row.fault or blank_source:
            skips[f"{row.place.rpartition(':')[0]}: {row.fault or 'blank on both sides'}"] += 1
            continue
        sources.append(row.source)
        targets.append(row.target)
    if not sources:
        raise ValueError(f"{files[0]}: no usable pair of sentences ({sum(skips.values()):,} rows skipped)")
    return Pairs(sources, targets, files, dict(skips))


def find_splits(
    data: str | Path, source: str, target: str, *, validation: str | None = None, test: str | None = None
) -> Splits:
    """The corpora behind `data`: a directory's splits, or one corpus as the training data.

    `validation` and `test` name corpora that take precedence over those found. Raises FileNotFoundError.
    """
    found = Splits(str(data), None, [])
    folder = Path(data)
    if folder.is_dir():
        found = splits_among(folder, _corpora(folder, source, target))
        if found == (None, None, []):
            names = sorted(p.name for p in folder.iterdir())
            for one, other in ((f"train.{source}", f"train.{target}"), (f"train.{target}", f"train.{source}")):
                if one in names:
                    raise FileNotFoundError(f"{folder / other}: no such file, beside {one}; a corpus needs both sides")
            there = ", ".join(names[:8]) or "nothing"
            raise FileNotFoundError(
                f"{folder}: no {source}-{target} corpus; expected train.{source} + train.{target}"
                f" (or train.tsv, .jsonl, .parquet), and val, test likewise; found {there}"
            )
    else:
        _locate(str(data), source, target)
    for corpus in filter(None, (validation, test)):
        _locate(corpus, source, target)
    return Splits(found.train, validation or found.validation, [test] if test else found.test)


def read_splits(
    data: str | Path, source: str, target: str, *, validation: str | None = None, skip_bad_lines: bool = False
) -> tuple[Pairs, Pairs]:
    """(training, validation) pairs of `data`. Without validation data, 5% of the training data is held out."""
    splits = find_splits(data, source, target, validation=validation)
    if splits.train is None:
        raise FileNotFoundError(f"{data}: no training data; expected train.{source} + train.{target}")
    train = read_parallel(splits.train, source, target, skip_bad_lines=skip_bad_lines)
    if splits.validation is None:
        return hold_out(train)
    return train, read_parallel(splits.validation, source, target, skip_bad_lines=skip_bad_lines)


def hold_out(pairs: Pairs, fraction: float = 0.05) -> tuple[Pairs, Pairs]:
    """(kept, held out): decided by a hash of the source alone, so all copies of a source fall on one side, whatever
    else the corpus holds and in whatever order. At least one source is held out."""
    try:
        kept, held = held_out(pairs.sources, fraction, what="source sentence")
    except ValueError as error:
        raise ValueError(f"{pairs.files[0]}: {error}" if pairs.files else str(error)) from None
    return pairs.subset(kept), pairs.subset(held)


def _corpora(folder: Path, source: str, target: str) -> list[str]:
    """Names in a directory that are corpora: tables, and prefixes that have both suffixes."""
    names = {p.name for p in folder.iterdir() if p.is_file()}
    prefixes = {n.removesuffix(f".{source}") for n in names if n.endswith(f".{source}")}
    tables = {n for n in names if Path(n).suffix in _TABLES}
    return sorted(tables | {p for p in prefixes if f"{p}.{target}" in names})


def _locate(path: str, source: str, target: str) -> list[Path]:
    """The one table, or the source and target files, of a corpus; FileNotFoundError says what was looked for."""
    whole = Path(path)
    if whole.suffix in _TABLES and (whole.is_file() or "," not in path):
        if whole.is_file():
            return [whole]
        raise FileNotFoundError(f"{whole}: no such file; give an existing {whole.suffix} file")
    if whole.is_dir():
        raise ValueError(f"{whole}: is a directory; name one corpus in it, such as {whole / 'train'}")
    files = [Path(f"{path}.{language}") for language in (source, target)]
    if "," in path and not files[0].is_file():
        files = [Path(part.strip()) for part in path.split(",")]
        if len(files) != 2:
            raise ValueError(f"{path!r}: {len(files)} files; expected two, the {source} file then the {target} file")
    for file in files:
        if not file.is_file():
            forms = (
                f"a prefix of .{source} and .{target} files, 'A.{source},B.{target}', or a {', '.join(_TABLES)} file"
            )
            raise FileNotFoundError(f"{file}: no such file; give {forms}")
    return files


def _two_files(source_file: Path, target_file: Path) -> Iterator[_Row]:
    sources, targets = lines_of(source_file), lines_of(target_file)
    if len(sources) != len(targets):
        raise ValueError(
            f"{source_file} has {len(sources):,} lines but {target_file} has {len(targets):,} (from line"
            f" {min(len(sources), len(targets)) + 1:,} on there is no counterpart); line N must translate line N"
        )
    for number, (a, b) in enumerate(zip(sources, targets, strict=True), 1):
        if a is None or b is None:
            yield _Row(f"{source_file if a is None else target_file}:{number}", "", "", *UTF8)
        else:
            yield _Row(f"{source_file}:{number}", a, b)


def _tsv(file: Path, source: str, target: str) -> Iterator[_Row]:
    lines = lines_of(file)
    names = (lines[0] or "").split("\t")
    columns, width = (0, 1), 2
    for wanted in ((source, target), ("source", "target")):
        if set(wanted) <= set(names):
            columns, width = (names.index(wanted[0]), names.index(wanted[1])), len(names)
            break
    header = width != 2 or sorted(names) in (sorted((source, target)), ["source", "target"])
    for number, line in enumerate(lines[header:], 1 + header):
        place = f"{file}:{number}"
        if line is None:
            yield _Row(place, "", "", *UTF8)
            continue
        cells = line.split("\t")
        if len(cells) == width:
            yield _Row(place, cells[columns[0]], cells[columns[1]])
        elif not line.strip():
            yield _Row(place, "", "")
        else:
            remedy = f"separate {source} and {target} by one tab, or name the columns in a header line"
            yield _Row(place, "", "", f"{len(cells)} columns where {width} were expected", remedy)


def _jsonl(file: Path, source: str, target: str) -> Iterator[_Row]:
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        if line is None:
            yield _Row(place, "", "", *UTF8)
        elif not line.strip():
            yield _Row(place, "", "")
        else:
            try:
                record = json.loads(line)
            except ValueError as error:
                message = getattr(error, "msg", str(error))
                yield _Row(place, "", "", f"not JSON ({message})", "write one object a line")
            else:
                yield _record(place, record, source, target)


def _parquet(file: Path, source: str, target: str) -> Iterator[_Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        names = set(table.schema_arrow.names)
        wanted = [n for n in ("translation", source, target, "source", "target") if n in names]
        if "translation" not in names and not {source, target} <= names and not {"source", "target"} <= names:
            raise ValueError(
                f"{file}: columns {', '.join(sorted(names))}; expected {source} and {target}, source and target, or"
                " translation; rename them"
            )
        number = 0
        for batch in table.iter_batches(columns=wanted):
            for record in batch.to_pylist():
                number += 1
                yield _record(f"{file}:{number}", record, source, target)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: not a Parquet file ({str(error).splitlines()[0]}); write it again") from None


def _record(place: str, record: Any, source: str, target: str) -> _Row:
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    for names in ((source, target), ("source", "target")):
        if isinstance(record, dict) and set(names) <= set(record):
            texts = [record[name] for name in names]
            if all(isinstance(text, str) for text in texts):
                if halved := [name for name, text in zip(names, texts, strict=True) if half_character(text)]:
                    return _Row(place, "", "", f"{halved[0]!r} {SURROGATE[0]}", SURROGATE[1])
                return _Row(place, *texts)
            wrong = next(name for name, text in zip(names, texts, strict=True) if not isinstance(text, str))
            return _Row(
                place, "", "", f"{wrong!r} is {json.dumps(record[wrong], default=str)}, not text", "write a string"
            )
    fault = f"no {source!r} and {target!r} (or 'source' and 'target')"
    return _Row(place, "", "", fault, "name the two texts by their language codes")


_READERS: dict[str, Callable[[Path, str, str], Iterator[_Row]]] = {".tsv": _tsv, ".jsonl": _jsonl, ".parquet": _parquet}
