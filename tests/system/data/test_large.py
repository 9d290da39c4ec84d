"""Data larger than memory: equal tokens for every way of storing and reading, in bounded memory, despite faults."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer

from manyheads.core.runtime import resident_memory
from manyheads.data.readers import corpus
from manyheads.data.readers.compressed import format_suffix, open_decompressed
from manyheads.data.readers.corpus import cut
from manyheads.data.readers.roles import NUMBERED, splits_among
from manyheads.data.readers.splits import MAX_LINE_BYTES, lines
from manyheads.data.readers.texts import Texts, read_texts
from manyheads.data.sources.running_text import TextSource
from manyheads.data.text.blocks import MAX_LISTED, Groups, block_starts
from manyheads.data.text.store import TokenStream
from manyheads.data.text.tokenizers import END_OF_TEXT, train_byte_bpe
from manyheads.files import LEFTOVER, fingerprint

WORDS = ["the", "cat", "sat", "on", "a", "mat,", "isn't", "it?", "Grüße", "世界", "3.14", "", "\t", "x_y\r\n\n"]


def prose(words: int, seed: int = 0) -> str:
    rng = Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words)) + "\n"


TEXTS = [prose(words, words) for words in (5, 300, 40, 2, 900, 77, 18, 260)]
TOKENIZER = train_byte_bpe(TEXTS, 300)
END = TOKENIZER.token_to_id(END_OF_TEXT)


def zstd(file: Path, content: bytes) -> Path:
    with pyarrow.CompressedOutputStream(str(file), "zstd") as out:
        out.write(content)
    return file


def written(folder: Path, form: str, texts: list[str] = TEXTS) -> Path:
    """The texts in a form: two shards of a table, or a file for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, rows in enumerate((texts[:3], texts[3:])):
        file = folder / f"part-{shard}.{form}"
        if form == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": rows}), file)
        elif form.startswith("jsonl"):
            content = "".join(json.dumps({"text": text}) + "\n" for text in rows).encode()
            compress(file, content)
        else:
            for number, text in enumerate(rows):
                compress(folder / f"part-{shard}{number}.{form}", text.encode())
    return folder


def compress(file: Path, content: bytes) -> None:
    if file.suffix == ".zst":
        zstd(file, content)
    else:
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.mark.parametrize("form", ["txt", "txt.gz", "txt.zst", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_form_gives_equal_tokens(tmp_path: Path, form: str) -> None:
    texts = read_texts(written(tmp_path / "data", form))
    assert texts.texts == TEXTS
    assert texts.facts.fingerprint == fingerprint(TEXTS)
    stream = TokenStream.of(texts, TOKENIZER, END, tmp_path / "cache")
    assert stream[:].tolist() == [i for text in TEXTS for i in [END, *TOKENIZER.encode(text).ids]]


def test_truncating_a_text_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    text = prose(3000)
    monkeypatch.setattr(corpus, "MAX_PIECE", 97)
    pieces = list(cut([text[i : i + 50] for i in range(0, len(text), 50)]))
    assert "".join(pieces) == text
    assert len(pieces) > len(text) / 97
    assert max(map(len, pieces)) <= 97
    ids = [i for encoding in TOKENIZER.encode_batch(pieces) for i in encoding.ids]
    assert ids == TOKENIZER.encode(text).ids
    assert list(cut(["x" * 200])) == ["x" * 97, "x" * 97, "x" * 6]
    assert list(cut([""])) == [""]


def test_a_long_text_on_disk_equals_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_PIECE", 97)
    long = [prose(4000, seed) for seed in (1, 2, 3)]
    for number, text in enumerate(long):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8", newline="")
    texts = read_texts(tmp_path)
    assert texts.facts.fingerprint == fingerprint(long)
    facts = texts.facts
    assert (facts.characters, facts.lines) == (sum(map(len, long)), sum(text.count("\n") for text in long))
    assert facts.alphabet == "".join(sorted(set("".join(long))))
    one = TextSource(data=str(tmp_path / "0.txt"), share=0.25).read()
    at = int(len(long[0]) * 0.75)
    assert [one.train.texts, one.validation.texts] == [[long[0][:at]], [long[0][at:]]]
    assert one.validation.facts.fingerprint == fingerprint([long[0][at:]])


def test_an_invalid_byte_is_reported_with_its_line(tmp_path: Path) -> None:
    content = "häuser\n".encode() * 400_000
    (tmp_path / "a.txt").write_bytes(content + b"\xff\n" + content)
    (tmp_path / "b.txt").write_text("good")
    with pytest.raises(ValueError, match=r"a\.txt:400001: invalid UTF-8"):
        read_texts(tmp_path)
    assert read_texts(tmp_path, skip_bad_lines=True).texts == ["good"]


def test_shards_form_one_corpus(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        compress(tmp_path / f"train-{number:05}-of-00008.jsonl.zst", json.dumps({"text": text}).encode())
    (tmp_path / "validation-00000-of-00001.jsonl").write_text(json.dumps({"text": "v"}))
    source = TextSource(data=str(tmp_path))
    splits = source.read()
    assert [splits.train.texts, splits.validation.texts] == [TEXTS, ["v"]]
    assert source.describe(splits)["data"].count("train-") == len(TEXTS)
    names = ["train-0.txt", "train-1.txt", "train-extra.txt"]
    with pytest.raises(ValueError, match="several training corpora"):
        splits_among(tmp_path, names, shards=NUMBERED)
    listed = ",".join(str(tmp_path / f"train-{number:05}-of-00008.jsonl.zst") for number in (2, 0))
    assert read_texts(listed).texts == [TEXTS[2], TEXTS[0]]


def test_read_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path / "data", "jsonl")
    source = TextSource(data=str(data), share=0.3, cache_folder=tmp_path / "kept")
    first = source.read()
    description = source.describe(first)
    streams = [TokenStream.of(texts, TOKENIZER, END, tmp_path / "kept")[:].tolist() for texts in first[:2] if texts]
    with monkeypatch.context() as patched:
        patched.setattr("manyheads.data.readers.corpus.open_decompressed", lambda *_: pytest.fail("read again"))
        patched.setattr("manyheads.data.readers.splits.open_decompressed", lambda *_: pytest.fail("read again"))
        again = source.read()
        assert source.describe(again) == description
        assert source.report(again) == source.report(first)
        both = [TokenStream.of(texts, TOKENIZER, END, tmp_path / "kept")[:].tolist() for texts in again[:2] if texts]
        assert both == streams
    for file in (tmp_path / "kept").iterdir():
        if file.suffix in (".corpus", ".facts"):
            file.write_bytes(file.read_bytes()[:30])  # torn
    assert source.describe(source.read()) == description
    changed = source.read().train
    with (data / "part-0.jsonl").open("a") as more:
        more.write('{"text": "new"}\n')
    with pytest.raises(ValueError, match=r"part-0\.jsonl: the file changed while it was being read"):
        list(changed.parts())
    assert len(source.read().train) + len(source.read().validation) == len(TEXTS) + 1


TOKENIZE = """
import sys
from pathlib import Path
from manyheads.data.text import store
from manyheads.data.text.store import TokenStream
from manyheads.data.readers.texts import read_texts
from tokenizers import Tokenizer
store._CHARACTERS = 20_000
tokenizer = Tokenizer.from_file(sys.argv[2])
tokenizer.encode_special_tokens = True
texts = read_texts(sys.argv[1], cache_folder=Path(sys.argv[3]))
before = Path("/proc/self/status").read_text()
print(TokenStream.of(texts, tokenizer, int(sys.argv[4]), Path(sys.argv[3])).path, flush=True)
print("".join(line for line in Path("/proc/self/status").read_text().splitlines(True) if "VmHWM" in line))
"""


def tokenize(data: Path, cache: Path, threads: int = 1) -> subprocess.Popen[str]:
    tokenizer = data.with_suffix(".tokenizer.json")
    TOKENIZER.save(str(tokenizer))
    command = [sys.executable, "-c", TOKENIZE, str(data), str(tokenizer), str(cache), str(END)]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def large(folder: Path, megabytes: float, form: str = "jsonl") -> Path:
    """Four shards of so many megabytes together, all rows different."""
    folder.mkdir(exist_ok=True)
    body = [prose(400, seed) for seed in range(50)]
    for shard in range(4):
        size, rows = 0, list[str]()
        while size < megabytes * 1e6 / 4:
            rows.append(json.dumps({"text": f"{shard} {len(rows)} {body[len(rows) % 50]}"}) + "\n")
            size += len(rows[-1])
        compress(folder / f"part-{shard}.{form}", "".join(rows).encode())
    return folder


def test_threads_and_kills_do_not_change_the_file(tmp_path: Path) -> None:
    data = large(tmp_path / "data", 3, "jsonl.gz")
    files = []
    for threads in (1, 2, 3):
        process = tokenize(data, tmp_path / f"cache{threads}", threads)
        files.append(Path(process.communicate()[0].split()[0]))
    cache = tmp_path / "killed"
    process = tokenize(data, cache)
    while process.poll() is None and not list(cache.glob("*.tokens")):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (unfinished,) = cache.glob("*.tokens")
    assert unfinished.name.startswith(LEFTOVER)
    files.append(Path(tokenize(data, cache).communicate()[0].split()[0]))
    assert len({file.read_bytes() for file in files}) == 1


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (2, 20):
        data = large(tmp_path / f"data{megabytes}", megabytes)
        output = tokenize(data, tmp_path / f"cache{megabytes}").communicate()[0]
        peaks.append(int(output.split("VmHWM:")[1].split()[0]) / 1024)
    assert peaks[1] - peaks[0] < 12, peaks  # MiB: of ten times the text; in memory they took 24 bytes a character


@pytest.mark.parametrize("random", [True, False])
def test_the_order_of_very_many_blocks_is_computed_lazily(random: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.data.text.blocks.MAX_LISTED", 10)
    for tokens, block in ((1000, 7), (4097, 1), (100, 9)):
        starts = Groups(block_starts(tokens, block, seed=1, epoch=2, random=random), 8)
        every = np.concatenate([starts[i] for i in range(len(starts))])
        assert len(every) == (tokens - 1) // block or not random
        assert every.min() >= 0
        assert every.max() + block + 1 <= tokens
        if not random:
            ordered = np.sort(every)
            assert set(np.diff(ordered).tolist()) == {block}, "each block once, one behind the other"
            assert ordered[0] < block
            assert tokens - 1 - ordered[-1] < 2 * block
        assert every.tolist() != np.sort(every).tolist()
        other = Groups(block_starts(tokens, block, seed=1, epoch=3, random=random), 8)
        assert np.concatenate([other[i] for i in range(len(other))]).tolist() != every.tolist()


def test_computed_positions_look_random() -> None:
    starts = block_starts(MAX_LISTED * 8 + 1, 4, seed=1, epoch=0, random=False)
    some = starts[100_000:200_000] / (MAX_LISTED * 8)
    counts, _ = np.histogram(some, 100, (0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 160, "chi-squared of 99 degrees of freedom: 1 in 10,000"
    assert abs(np.corrcoef(some[:-1], some[1:])[0, 1]) < 0.02


def test_the_last_batch_of_an_epoch_is_as_fast_as_the_first() -> None:
    began = time.process_time()
    starts = Groups(block_starts(10**13, 128, seed=1, epoch=0, random=False), 8)
    assert len(starts[len(starts) - 1]) > 0
    assert len(starts[0]) == 8
    assert time.process_time() - began < 1


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_files_are_reported_in_one_line(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.jsonl{suffix}"
    content = "".join(json.dumps({"text": Random(i).randbytes(40).hex()}) + "\n" for i in range(20_000)).encode()
    compress(file, content)
    whole = file.read_bytes()
    flipped = [whole[:1000] + bytes(50) + whole[1050:]] if suffix == ".gz" else []  # zstd may have no checksum
    for torn in (whole[: len(whole) // 2], whole[:-5], whole[1:], *flipped):
        file.write_bytes(torn)
        with pytest.raises(ValueError, match=rf"a\.jsonl{suffix}: truncated or damaged after byte [\d,]+ ") as caught:
            read_texts(tmp_path, skip_bad_lines=True)
        assert "\n" not in str(caught.value)


def test_truncated_files_use_no_memory(tmp_path: Path) -> None:
    """pyarrow's read() loses what it was to read into where it raises: here 500 KB of each torn file."""
    compress(tmp_path / "a.jsonl.zst", Random(0).randbytes(250_000).hex().encode())
    whole = (tmp_path / "a.jsonl.zst").read_bytes()
    (tmp_path / "a.jsonl.zst").write_bytes(whole[:-5])

    def torn() -> int:
        for _ in range(100):
            with pytest.raises(ValueError, match="truncated or damaged"):
                read_texts(tmp_path)
        return resident_memory()

    assert torn() > torn() - 2**23


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"])
def test_decompression_bombs_are_refused_early(tmp_path: Path, name: str) -> None:
    compress(tmp_path / name, b'{"text": "' + b"a" * 200_000_000)
    code = (
        "import re, sys; from manyheads.data.readers.texts import read_texts\n"
        "try: read_texts(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=True)
    said, peak = run.stdout.splitlines()
    assert "expands to more than 67,108,864 bytes" in said or "the line is longer than 67,108,864 bytes" in said
    assert int(peak) < 400, "MiB"


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.truncate(MAX_LINE_BYTES * 40)  # a sparse file
    with pytest.raises(ValueError, match=r"a\.jsonl:1: the line is longer than 67,108,864 bytes; split it"):
        next(lines(tmp_path / "a.jsonl"))


def test_an_oversized_parquet_footer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), file)
    content = file.read_bytes()
    file.write_bytes(content[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1")
    with pytest.raises(ValueError, match=r"a\.parquet: not a Parquet file"):
        read_texts(file)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.parquet: not a Parquet file"):
        read_texts(file)


def test_given_texts_have_equal_statistics(tmp_path: Path) -> None:
    given, read = Texts(TEXTS), read_texts(written(tmp_path, "jsonl"))
    assert given.facts == read.facts
    assert given.hashes.tolist() == read.hashes.tolist()
    assert list(given.subset([1, 3]).texts) == [TEXTS[1], TEXTS[3]]


def test_a_vocabulary_is_trained_on_a_fixed_sample() -> None:
    texts = Texts([prose(50, seed) for seed in range(2000)])
    assert list(texts.sample(texts.bytes)) == texts.texts
    some = list(texts.sample(texts.bytes // 10))
    assert some == list(texts.sample(texts.bytes // 10))
    assert 0.05 < sum(map(len, some)) / texts.facts.characters < 0.2
    assert set(some) < set(texts.texts)


def test_names_of_compressed_files(tmp_path: Path) -> None:
    assert [format_suffix(name) for name in ("a.jsonl", "a.b.jsonl.gz", "a.tsv.zst", "a", "a.gz")] == [
        ".jsonl", ".jsonl", ".tsv", "", "",
    ]  # fmt: skip
    (tmp_path / "two.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    with open_decompressed(tmp_path / "two.gz") as file:
        assert file.read() == b"one two"
    assert isinstance(TOKENIZER, Tokenizer)


def test_blanks_are_split_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces end at a blank after a letter, as in a slow plain search."""
    monkeypatch.setattr(corpus, "MAX_PIECE", 97)

    def ends(rest: str) -> Iterator[int]:
        while len(rest) > 97:
            places = [end for end in range(1, 97) if rest[end] in " \n" and rest[end - 1].isalnum()]
            yield (end := max(places, default=97))
            rest = rest[end:]
        yield len(rest)

    for seed in range(50):
        text = "".join(Random(seed).choices("ab \n.", [1, 1, 9, 9, 2], k=700))
        assert [len(piece) for piece in cut([text])] == list(ends(text))
    monkeypatch.undo()
    began = time.monotonic()
    assert sum(map(len, cut(["a" + "\n" * corpus.MAX_PIECE + " " * corpus.MAX_PIECE]))) == 2 * corpus.MAX_PIECE + 1
    assert time.monotonic() - began < 5
