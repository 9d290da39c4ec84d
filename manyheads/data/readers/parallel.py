"""Reader of parallel corpora. It locates the files of the two languages and reads pairs of sentences.

One corpus is given as a string:
  `prefix`          prefix.de + prefix.en, one sentence per line
  `a.de,b.en`       two files, the source first
  `corpus.tsv`      two columns, source then target; or any columns under a header line that names them
  `corpus.csv`      the same as .tsv, but cells may be quoted
  `corpus.jsonl`    {"de": ..., "en": ...}, {"source": ..., "target": ...} or {"translation": {"de": ..., "en": ...}}
  `corpus.parquet`  columns with the same names as in .jsonl
  `a.jsonl,b.jsonl` several tables that form one corpus
All formats except Parquet may be compressed: prefix.de.gz, corpus.tsv.zst. A directory contains one corpus per split;
the name of a file determines its split (`roles.py`). A table in a directory may be sharded, for example
train-00000-of-00003.parquet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import ClassVar

from manyheads.data.readers.compressed import COMPRESSED, format_suffix
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import BadRow, Cells, Row, character_fault, parse_rows
from manyheads.data.readers.splits import UTF8, count_lines, lines, parts_of
from manyheads.data.readers.tables import TABLES, is_table, table
from manyheads.errors import UserError


@dataclass(frozen=True, repr=False)
class Pairs(Dataset):
    """Data set of sentence pairs in two languages.

    sources, targets  text of each pair in the source language and in the target language
    files             paths of the source file and the target file, or the path of one file with both languages
    """

    columns: ClassVar[tuple[str, ...]] = ("sources", "targets")
    large: ClassVar[tuple[str, ...]] = columns

    sources: Sequence[str]
    targets: Sequence[str]
    files: list[Path] = field(default_factory=list)


def read_parallel(
    path: str | Path | Rows, source: str, target: str, *, skip_bad_lines: bool = False, cache_folder: Path | None = None
) -> Pairs:
    """Read one parallel corpus. See the documentation of this module for the formats.

    source, target  language codes, which are used as file suffixes or column names
    skip_bad_lines  True: leave out and count faulty rows. Pairs that are blank on both sides are always left out
                    and counted
    cache_folder    directory for a temporary file without a name, which stores the texts if one language exceeds 64
                    million characters; None: the system's directory for temporary files

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    parts = [path] if isinstance(path, Rows) else locate(str(path), source, target)
    files, tables = [Path(part) for part in parts], is_table(parts[0])
    rows = chain.from_iterable(_table(part, source, target) for part in parts) if tables else _two_files(*files)
    skips: Counter[str] = Counter()

    def pair(row: Row[Sides]) -> Sides | None:
        sides = _checked(row.cells, [row.file] if tables else files, (source, target))
        if not any(sides):
            skips[f"{row.file}: blank on both sides"] += 1
            return None
        return sides

    place = Path(path) if tables else files[0]
    missing, pairs_found = "no usable pair of sentences found", parse_rows(rows, pair)
    pairs = Pairs.collect(pairs_found, place, missing, skip=skip_bad_lines, skips=skips, folder=cache_folder)
    return replace(pairs, files=[place] if tables else files)


def corpora_in(folder: Path, source: str, target: str) -> list[str]:
    """Return the names of the parallel corpora in a directory.

    A corpus is a table, or a pair of files with a common prefix, one for each language. Its name is the file name of
    the table, or the prefix.
    """
    names = {path.name for path in folder.iterdir() if path.is_file()}
    plain = {
        name.removesuffix(Path(name).suffix) if Path(name).suffix.lower() in COMPRESSED else name for name in names
    }
    prefixes = {Path(name).stem for name in plain if Path(name).suffix.lower() == f".{source}".lower()}
    tables = {name for name in names if is_table(name)}
    corpora = sorted(tables | {prefix for prefix in prefixes if _side(str(folder / prefix), target).is_file()})
    for one, other in ((f"train.{source}", f"train.{target}"), (f"train.{target}", f"train.{source}")):
        if not corpora and one in names:
            raise FileNotFoundError(f"{folder / other}: no such file, but {one} exists; a corpus needs both sides")
    return corpora


def locate(path: str, source: str, target: str) -> list[Path]:
    """Return the files of a corpus: the tables, or the source file and the target file.

    Raises FileNotFoundError if a file is missing.
    """
    parts = parts_of(path)
    if all(map(is_table, parts)):
        for part in parts:
            if not part.is_file():
                raise FileNotFoundError(f"{part}: no such file; give an existing {format_suffix(part)} file")
        return parts
    if len(parts) == 1 and parts[0].is_dir():
        raise UserError(f"{parts[0]}: is a directory; give one corpus in it, such as {parts[0] / 'train'}")
    files = [_side(path, language) for language in (source, target)]
    if len(parts) > 1 and not files[0].is_file():
        files = parts
        if len(files) != 2:
            raise UserError(
                f"{path!r}: expected two files, the {source} file then the {target} file; found {len(files)}"
            )
    for file in files:
        if not file.is_file():
            forms = f"a prefix of .{source} and .{target} files, 'A.{source},B.{target}', or a {', '.join(TABLES)} file"
            raise FileNotFoundError(f"{file}: no such file; give {forms}")
    return files


def _side(prefix: str, language: str) -> Path:
    """Return the path of a corpus file in one language, given the prefix that both files have in common.

    The file may be compressed, and its suffix may be in upper case.
    """
    names = [f"{prefix}.{language}{ending}" for ending in ("", *COMPRESSED)]
    files = [Path(name) for name in (*names, *(prefix + name.removeprefix(prefix).upper() for name in names))]
    return next((file for file in files if file.is_file()), files[0])


Sides = tuple[object, object]


def _two_files(source_file: Path, target_file: Path) -> Iterator[Row[Sides]]:
    counts = [count_lines(file) for file in (source_file, target_file)]
    if 0 in counts:
        raise UserError(
            f"{(source_file, target_file)[counts.index(0)]}: the file is empty; expected one sentence per line"
        )
    if counts[0] != counts[1]:
        raise UserError(
            f"{source_file} has {counts[0]:,} lines but {target_file} has {counts[1]:,} (lines from"
            f" {min(counts) + 1:,} on have no counterpart); line N must be the translation of line N"
        )
    for number, sides in enumerate(zip_longest(lines(source_file), lines(target_file)), 1):
        if None in sides:
            yield Row(target_file if sides[0] is not None else source_file, number, ("", ""), *UTF8)
        else:
            yield Row(source_file, number, sides)


def _table(file: Path | Rows, source: str, target: str) -> Iterator[Row[Sides]]:
    names = ((source, target), ("source", "target"))

    def sides(row: Row[Cells]) -> Sides:
        cells = row.cells.get("translation", row.cells)
        for first, second in names:
            if isinstance(cells, dict) and first in cells and second in cells:
                return cells[first], cells[second]
        fault = f"expected texts under {source!r} and {target!r} (or 'source' and 'target')"
        raise BadRow(fault, "name the two texts by their language codes")

    return parse_rows(table(file, columns=("translation", *names[0], *names[1]), headers=names), sides)


def _checked(sides: Sides, files: Sequence[Path], names: Sequence[str]) -> tuple[str, str]:
    """Return the source text and the target text of a row. If both are blank, return two empty strings.

    Raises BadRow if only one of the texts is blank, or if one is not a valid text.
    """
    texts: list[str] = []
    for text, name, file in zip(sides, names, (files[0], files[-1]), strict=True):
        if not isinstance(text, str):
            raise BadRow(f"expected text in {name!r}, found {repr(text)[:40]}", "write a string", file=file)
        if unusual := character_fault(text, repr(name)):
            raise BadRow(*unusual, file=file)
        texts.append(text)
    blank = [not text.strip() for text in texts]
    if all(blank):
        return "", ""
    if any(blank):
        side = blank.index(True)
        fault = f"blank on the {names[side]} side only"
        raise BadRow(fault, "fill in or remove the pair", file=(files[0], files[-1])[side])
    return texts[0], texts[1]
