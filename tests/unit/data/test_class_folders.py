"""Text files in one folder per class; each fault is reported by file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyheads import cli
from manyheads.data.readers.labeled import Columns, Labeled, read_labeled
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import LabeledSource
from manyheads.data.sources.recorded import RecordedData

IMDB = ("negative", "positive")


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def acl(folder: Path, **more: str | bytes) -> Path:
    """As IMDB's authors pack it, with the validation data that a reader makes."""
    files = {
        f"{split}/{label}/{i}_{i % 9}.txt": f"{label} in {split},\nnumber {i}"
        for split in ("train", "val", "test") for label in ("pos", "neg") for i in range(3)
    }  # fmt: skip
    packed = {
        "README": "of the data",
        "imdb.vocab": "the\n",
        "train/urls_pos.txt": "http://a\n",
        "test/labeledBow.feat": "1",
    }
    unlabeled = {f"train/unsup/{i}_0.txt": "neither" for i in range(4)}
    return write(folder / "aclImdb", {**files, **packed, **unlabeled, **more})


def read(data: Path, **settings: Any) -> SplitData[Labeled]:
    return LabeledSource(data=str(data), **settings).read()


def test_reviews_are_read_unpacked(tmp_path: Path) -> None:
    splits = read(acl(tmp_path), names=IMDB)
    assert splits.test is not None
    for name, part in splits.known.items():
        assert part.texts == [f"{label} in {name[:3] if name == 'validation' else name},\nnumber {i}"
                              for label in ("neg", "pos") for i in range(3)]  # fmt: skip
        assert part.labels == ["negative"] * 3 + ["positive"] * 3
        assert part.second_texts is None
    folder = tmp_path / "aclImdb" / "train"
    assert splits.train.skips == {
        f"{folder}: texts outside of class folders": 1, f"{folder / 'unsup'}: texts without a label": 4,
    }  # fmt: skip
    assert splits.train.place(4) == str(folder / "pos" / "1_1.txt")
    assert splits.train.subset([4]).place(0) == str(folder / "pos" / "1_1.txt")
    assert not splits.held_out
    assert read(tmp_path / "aclImdb").train.labels[::3] == ["neg", "pos"]  # without names their own


def test_class_folders_without_splits_are_held_out_by_hash(tmp_path: Path) -> None:
    classes = ("de", "en", "test")  # a class may be called like a split
    data = write(tmp_path / "all", {f"{label}/{i}.txt": f"{label} {i}" for label in classes for i in range(59)})
    write(
        data,
        {
            "de/.hidden.txt": "x",
            "de/more/of/60.txt": "60",
            "en/60.txt": "60",
            "test/60.txt": "60",
            "notes.txt": "about",
            "en/table.csv": "1",
        },
    )
    splits = read(data)
    assert splits.test is None
    assert splits.held_out == len(splits.validation) > 0
    assert len(splits.train) + len(splits.validation) == 180
    assert set(splits.train.labels) == set(classes)
    assert splits.train.skips == {
        f"{data}: texts outside of class folders": 1, f"{data / 'en'}: files that are not .txt": 1,
    }  # fmt: skip
    assert len(LabeledSource().read_other(str(data))) == 180
    assert len(LabeledSource().read_other(str(acl(tmp_path)))) == 6, "of a directory of splits the test data"


def test_a_record_finds_its_texts(tmp_path: Path) -> None:
    source = LabeledSource(data=str(acl(tmp_path)), names=IMDB)
    told = source.describe(source.read())
    keys = ("data", "validation", "test")
    assert [Path(told[key]).name for key in keys] == ["train", "val", "test"]
    again = RecordedData(LabeledSource(**{key: told[key] for key in keys}, names=IMDB), told["fingerprints"])
    assert again.read("test").texts == source.read().test.texts  # type: ignore[union-attr]
    write(tmp_path / "aclImdb", {"test/pos/0_0.txt": "another"})
    with pytest.raises(ValueError, match="the test data changed since the run"):
        again.read("test")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/pos/9_9.txt": b"fine\n\xff"}, r"train/pos/9_9\.txt:2: invalid UTF-8; convert the file"),
        ({"train/neg/9_9.txt": ""}, r"train/neg/9_9\.txt:1: the text is blank; add text to the file, or remove it"),
        ({"val/neg/9_9.txt": " \n"}, r"val/neg/9_9\.txt:1: the text is blank"),
        ({"test/pos/9_9.txt": "a\0"}, r"test/pos/9_9\.txt:1: contains a NUL byte"),
        ({"train/pos/9_9.txt": "long " * 250_000}, r"9_9\.txt:1: the text is longer than 1,000,000 characters: it has"),
        ({"train/pos/9_9.txt": b"long " * 1_000_000}, r"9_9\.txt:1: the text is longer than 1,000,000 "
                                                      r"characters; split"),
        ({"train/good/1.txt": "x"}, r"train/good/1\.txt:1: expected one of the labels negative, positive "
                                    r"\(0 to 1\), found 'good'"),
        ({"train/positive/.keep": ""}, r"train: class folder 'positive': contains no \.txt file; add texts"),
        ({"test/other/1.dat": ""}, r"test: class folder 'other': contains no \.txt file"),
    ],
)  # fmt: skip
def test_faults_are_reported_with_file_or_skipped(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    data = acl(tmp_path, **files)
    with pytest.raises(ValueError, match=message + ".*--skip-bad-lines") as error:
        read(data, names=IMDB)
    assert "\n" not in str(error.value)
    splits = read(data, names=IMDB, skip_bad_lines=True)
    assert [len(part) for part in splits.known.values()] == [6, 6, 6]
    before = [part.skips for part in read(acl(tmp_path / "fine"), names=IMDB).known.values()]
    counts = [sum(part.skips.values()) for part in splits.known.values()]
    assert sum(counts) == sum(sum(skips.values()) for skips in before) + 1 + ("test/other/1.dat" in files)


def test_a_dry_run_refuses_a_single_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "train.tsv"
    table.write_text("text\tlabel\n" + "".join(f"text {i}\tgood\n" for i in range(20)))
    assert cli.main(["train", "text-classification", f"data={tmp_path}", "--dry-run"]) == 2
    assert capsys.readouterr().err == f"manyheads: {table}: found only one label, 'good'; expected at least two\n"


def test_missing_class_folders_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "one", {f"train/pos/{i}.txt": f"text {i}" for i in range(3)})
    with pytest.raises(ValueError, match=r"one/train: found only one label, 'pos'; expected at least two"):
        read(tmp_path / "one")
    write(tmp_path / "flat", {"train/1.txt": "text"})
    with pytest.raises(ValueError, match=r"flat/train: found no class folders; expected .*flat/train/CLASS/\*\.txt"):
        read(tmp_path / "flat")
    write(tmp_path / "none", {"a/b/1.txt": "text"})
    with pytest.raises(FileNotFoundError, match=r"none: found no data; expected train\.tsv .*, or train/CLASS/\*\.txt"):
        read(tmp_path / "none")
    write(tmp_path / "untrained", {"test/pos/1.txt": "text"})
    with pytest.raises(FileNotFoundError, match=r"untrained: found no training data; expected .*train/CLASS"):
        read(tmp_path / "untrained")
    with pytest.raises(ValueError, match="class folders have no columns"):
        read_labeled(acl(tmp_path), Columns(text="review"))


def test_tables_precede_folders(tmp_path: Path) -> None:
    data = acl(tmp_path, **{"train.tsv": "text\tlabel\na\tx\nb\ty\n", "val.tsv": "text\tlabel\na\tx\n"})
    assert read(data).train.labels == ["x", "y"]


def test_numeric_folder_names_are_labels(tmp_path: Path) -> None:
    data = write(tmp_path, {f"{label}/{i}.txt": f"{label} {i}" for label in "01" for i in range(2)})
    labeled = read_labeled(data, names=IMDB)
    assert (labeled.labels, labeled.numbered) == (
        ["negative"] * 2 + ["positive"] * 2, {"0": "negative", "1": "positive"},
    )  # fmt: skip


def test_folders_and_table_hold_equal_images(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    """A part of IMDB, unpacked."""
    table = read_labeled(real_data("imdb") / "test.parquet", names=IMDB).subset(range(200))
    files = {
        f"{label[:3]}/{i:03}.txt": text for i, (text, label) in enumerate(zip(table.texts, table.labels, strict=True))
    }
    unpacked = read_labeled(write(tmp_path, dict(files)), names=IMDB)
    pairs = [sorted(zip(data.texts, data.labels, strict=True)) for data in (table, unpacked)]
    assert pairs[0] == pairs[1]
