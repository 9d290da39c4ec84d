"""Roles of files and folders by name, for texts, tables and images, and their line in the report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.source import ImageSource
from manyheads.data.readers.roles import role_of, split_folders, splits_among
from manyheads.data.readers.splits import parts_of
from manyheads.data.sources.corpora import LabeledSource, ParallelSource, QuestionSource, TaggedSource
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import Source

USUAL = [  # names of training, validation and test data
    ("train", "val", "test"),
    ("train", "valid", "test"),
    ("train", "validation", "test"),
    ("train", "dev", "test"),
    ("training", "validation", "testing"),
    ("Train", "Val", "Test"),
    ("TRAIN", "VALID", "TEST"),
    ("Training", "Validation", "Testing"),
    ("seg_train", "seg_dev", "seg_test"),
    ("wiki.train", "wiki.valid", "wiki.test"),
    ("ptb-train", "ptb-valid", "ptb-test"),
    ("train-v1.1", "dev-v1.1", "test-v1.1"),
    ("train_2016", "val_2016", "test_2016"),
    ("train2017", "val2017", "test2017"),
    ("train", "eval", "test"),
    ("train", "validation", "eval"),
    ("train_data", "valid_data", "test_data"),
    ("news.train.en", "news.dev.en", "news.test.en"),
    ("my data train", "my data valid", "my data test"),
    ("TrainSet", "DevSet", "TestSet"),
    ("en_ewt-ud-train", "en_ewt-ud-dev", "en_ewt-ud-test"),
    ("trn", "dev", "tst"),
    ("reviews_training_clean", "reviews_dev_clean", "reviews_testing_clean"),
    ("eng.train", "eng.testa", "eng.testb"),
]
ROLES = ("train", "validation", "test")


def as_text(folder: Path, name: str, role: str, number: int) -> None:
    (folder / f"{name}.txt").write_text(f"{role} data\n")


def as_tokens(folder: Path, name: str, role: str, number: int) -> None:
    (folder / f"{name}.tokens").write_text(f"{role} data.\n")


def as_table(folder: Path, name: str, role: str, number: int) -> None:
    (folder / f"{name}.csv").write_text(f"text,label\n{role} one,a\n{role} two,b\n")


def as_class_folders(folder: Path, name: str, role: str, number: int) -> None:
    for label in ("a", "b"):
        (folder / name / label).mkdir(parents=True)
        (folder / name / label / "1.txt").write_text(f"{role} {label}")


def as_images(folder: Path, name: str, role: str, number: int) -> None:
    for gray, label in enumerate(("cat", "dog")):
        (folder / name / label).mkdir(parents=True)
        pixels = np.full((4, 4), 10 * number + gray, np.uint8)
        Image.fromarray(pixels).save(folder / name / label / "1.png")


def as_image_table(folder: Path, name: str, role: str, number: int) -> None:
    lines = []
    for gray, label in enumerate(("cat", "dog")):
        (folder / "pixels").mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), 10 * number + gray, np.uint8)).save(folder / "pixels" / f"{role}{gray}.png")
        lines.append(f'{{"image": "pixels/{role}{gray}.png", "label": "{label}"}}\n')
    (folder / f"{name}.jsonl").write_text("".join(lines))


def as_tags(folder: Path, name: str, role: str, number: int) -> None:
    (folder / f"{name}.conll").write_text(f"{role} O\nx B-X\n")


def as_questions(folder: Path, name: str, role: str, number: int) -> None:
    (folder / f"{name}.json").write_text("{}")


def as_two_files(folder: Path, name: str, role: str, number: int) -> None:
    for language in ("en", "de"):
        (folder / f"{name}.{language}").write_text(f"{role}\n")


FORMS: list[tuple[Callable[[Path, str, str, int], None], type[Source[Any]], bool]] = [  # and whether there are tests
    (as_text, TextSource, True),
    (as_tokens, TextSource, True),
    (as_tokens, DocumentSource, False),
    (as_table, LabeledSource, True),
    (as_class_folders, LabeledSource, True),
    (as_images, ImageSource, True),
    (as_image_table, ImageSource, True),
    (as_tags, TaggedSource, True),
    (as_questions, QuestionSource, True),
    (as_two_files, ParallelSource, True),
]


def names_of(source: Source[Any]) -> list[str]:
    """The names of the training, validation and test data."""
    train, validation, tests = source.splits()
    return [Path(path or "").name for path in (train, validation, *tests)]


@pytest.mark.parametrize("names", USUAL, ids="/".join)
def test_usual_split_names_have_their_roles_in_every_format(tmp_path: Path, names: tuple[str, ...]) -> None:
    for form, (write, kind, tested) in enumerate(FORMS):
        folder = tmp_path / str(form)
        folder.mkdir()
        for number, (name, role) in enumerate(zip(names, ROLES, strict=True)):
            write(folder, name, role, number)
        (folder / "README").write_text("about")
        source = kind(data=str(folder))
        found = [re.sub(r"\.(txt|tokens|csv|jsonl|conll|json)$", "", name) for name in names_of(source)]
        assert found == [*names[: 2 + tested]], write
        if kind is not QuestionSource:
            (line,) = source.summary_lines(source.read())
            for name, role in zip(names[: 2 + tested], ROLES, strict=False):
                assert f"{role} = {name}" in line
            assert "; not used: README" in line


@pytest.mark.parametrize("names", USUAL, ids="/".join)
def test_each_split_matches_its_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    for number, (name, role) in enumerate(zip(names, ROLES, strict=True)):
        as_text(tmp_path, name, role, number)
    splits = TextSource(data=str(tmp_path)).read()
    assert [texts.texts for texts in splits.known.values()] == [[f"{role} data\n"] for role in ROLES]


@pytest.mark.parametrize(
    "name",
    ["contest.txt", "latest", "testimonials", "trainers", "evaluate.csv", "train_test_labels.csv", "devil", "valley",
     "testing_notes.txt", "trainval.txt", "README", "training_log.txt", "tests"],
)  # fmt: skip
def test_lookalike_names_have_no_split_role(name: str) -> None:
    assert role_of(name) is None


def test_dry_runs_name_missing_evaluation_data(tmp_path: Path) -> None:
    assert splits_among(tmp_path, ["train", "eval"])[1:] == (str(tmp_path / "eval"), [])
    assert splits_among(tmp_path, ["train", "val", "eval"])[2] == [str(tmp_path / "eval")]
    assert splits_among(tmp_path, ["train", "eval", "val", "test"])[1:] == (
        str(tmp_path / "val"), [str(tmp_path / "test")],
    )  # fmt: skip


def test_shards_of_a_split_form_one_corpus(tmp_path: Path) -> None:
    for part in range(40):
        (tmp_path / f"{'long-name-' * 10}Train-{part:05}-of-00040.txt").write_text(f"{part}\n")
    (tmp_path / "dev.txt").write_text("dev\n")
    source = TextSource(data=str(tmp_path))
    splits = source.read()
    assert len(splits.train) == 40
    (line,) = source.summary_lines(splits)
    assert line.count("Train-") == 4
    assert "and 36 more; validation = dev.txt" in line
    assert source.describe(splits)["data"].count(",") == 39
    assert len(parts_of(source.describe(splits)["data"])) == 40


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("dev_matched", "dev_mismatched", "train"), r"several validation corpora \(dev_matched.txt, dev_mism"),
        (("train", "training"), r"several training corpora \(train.txt, training.txt\); select the files"),
        (("a", "b", "valid"), r"no training data; found valid\.txt as .* test data, and a\.txt, b\.t"),
        (("test", "valid"), r"no training data; .* and nothing as other files"),
    ],
)  # fmt: skip
def test_ambiguous_folders_are_reported(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        as_text(tmp_path, name, "x", 0)
    for kind in (TextSource, DocumentSource):
        with pytest.raises(ValueError, match=message):
            kind(data=str(tmp_path)).read()


def test_conll_2003_is_read_unpacked(tmp_path: Path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (tmp_path / name).write_text(f"{name} O\nx B-X\n")
    splits = TaggedSource(data=str(tmp_path)).read()
    assert [tagged.words[0][0] for tagged in splits.known.values()] == ["eng.train", "eng.testa", "eng.testb"]


def test_the_other_text_is_training_data(tmp_path: Path) -> None:
    for name in ("input", "valid", "test"):
        as_text(tmp_path, name, name, 0)
    assert names_of(TextSource(data=str(tmp_path))) == ["input.txt", "valid.txt", "test.txt"]


def test_splits_below_a_directory_of_texts_are_not_mixed(tmp_path: Path) -> None:
    for corpus in ("one", "two"):
        (tmp_path / corpus).mkdir()
        for role in ("train", "valid"):
            as_text(tmp_path / corpus, f"wiki.{role}", role, 0)
    with pytest.raises(
        ValueError, match=r"one: wiki.train.txt, wiki.valid.txt look like splits; give .*: data=.*/one$"
    ):
        TextSource(data=str(tmp_path)).read()


def test_source_code_named_like_splits_is_text(tmp_path: Path) -> None:
    for name in ("train.py", "test.py", "model.py", "eval.py", "training_notes.md", "test_plan.md"):
        (tmp_path / name).write_text(f"# of {name}\n" * 9)
    source = TextSource(data=str(tmp_path), share=0.2)
    splits = source.read()
    assert len(splits.train) + len(splits.validation) == 6
    assert "train = eval.py, model.py, test.py, test_plan.md and 2 more" in source.summary_lines(splits)[0]


def test_folders_named_like_splits_are_not_classes(tmp_path: Path) -> None:
    for name in ("Trainingsdaten", "Testdaten"):
        as_images(tmp_path, name, name, 0)
    with pytest.raises(
        ValueError, match="Testdaten, Trainingsdaten look like splits and contain the same folders; rename"
    ):
        ImageSource(data=str(tmp_path)).read()


def test_a_class_named_like_a_split_is_ambiguous(tmp_path: Path) -> None:
    for label in ("train", "bus", "car"):
        for model in ("old", "new"):
            (tmp_path / label / f"{label}-{model}").mkdir(parents=True)
    with pytest.raises(ValueError, match="train looks like a split, and bus, car like classes"):
        split_folders(sorted(tmp_path.iterdir()))


def test_duplicate_splits_are_detected(tmp_path: Path) -> None:
    """As seg_train/seg_train/CLASS; images without a label are not used, and named."""
    for number, name in enumerate(("seg_train", "seg_test")):
        as_images(tmp_path / name, name, name, number)
    (tmp_path / "seg_pred" / "seg_pred").mkdir(parents=True)
    source = ImageSource(data=str(tmp_path))
    splits = source.read()
    assert splits.train.names == ("cat", "dog")
    assert source.summary_lines(splits)[0].endswith(
        "train = seg_train/seg_train; test = seg_test/seg_test; not used: seg_pred"
    )


def test_unlabeled_data_are_not_used(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "train_unlabeled", "dev")):
        as_table(tmp_path, name, name, number)
    source = LabeledSource(data=str(tmp_path))
    assert source.summary_lines(source.read())[0].endswith("not used: train_unlabeled.csv")


def test_test_data_are_never_training_data(tmp_path: Path) -> None:
    for name in ("Train", "Val"):
        as_text(tmp_path, name, name, 0)
    with pytest.raises(ValueError, match="found no test data; give the test file or folder itself"):
        TextSource().read_other(str(tmp_path))
    assert DocumentSource().read_other(str(tmp_path)).texts == ["Val data"]
    as_text(tmp_path, "Test", "Test", 0)
    assert TextSource().read_other(str(tmp_path)).texts == ["Test data\n"]
