"""CoNLL-U files: multiword tokens, empty nodes, mentions, and faults reported by file and line."""

from collections.abc import Callable
from pathlib import Path

import conllu
import pytest

from manyheads.data.readers.treebank import ROOT, Mention, read_treebank


def row(number: str, form: str, head: str = "_", relation: str = "_", misc: str = "_", tag: str = "X") -> str:
    return "\t".join([number, form, form.lower(), tag, "_", "_", head, relation, "_", misc]) + "\n"


GOOD = row("1", "Yes", "0", "root")
CONTRACTED = (
    "# newdoc id = a\n# text = I don't know.\n"
    + row("1", "I", "4", "nsubj", "Entity=(1-person-giv)", "PRON")
    + row("2-3", "don't")
    + row("2", "do", "4", "aux", "SpaceAfter=No")
    + row("3", "n't", "4", "advmod")
    + row("3.1", "elided")
    + row("4", "know", "0", "root", "SpaceAfter=No|X=y")
    + row("5", ".", "4", "punct")
)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_numbered_words_are_read(tmp_path: Path) -> None:
    bank = read_treebank(write(tmp_path / "a.conllu", f"{CONTRACTED}\n# newdoc\n{GOOD}\n\n{GOOD}"))
    first = bank.sentences[0]
    assert first.words == ["I", "do", "n't", "know", "."]
    assert first.heads == [3, 3, 3, ROOT, 3]
    assert first.relations == ["nsubj", "aux", "advmod", "root", "punct"]
    assert first.spaces == [False, True, False, True, False]
    assert first.tags[0] == "PRON"
    assert first.mentions == [Mention("1", 0, 1)]
    assert [s.document for s in bank.sentences] == [1, 2, 2]
    assert [s.line for s in bank.sentences] == [1, 11, 15]
    assert (bank.multiword, bank.empty, len(bank)) == (1, 1, 3)


def test_mentions_may_nest_cross_and_be_split(tmp_path: Path) -> None:
    marks = ["(1-x(2-y", "(3-z)", "2)", "(4[1/2]-w)", "(5-v", "1)(4[2/2]-w)", "5)"]
    text = "".join(
        row(str(i), f"w{i}", "0" if i == 1 else "1", "dep", f"A=b|Entity={m}") for i, m in enumerate(marks, 1)
    )
    (sentence,) = read_treebank(write(tmp_path / "a.conllu", text)).sentences
    assert sentence.mentions == [
        Mention("1", 0, 6), Mention("2", 0, 3), Mention("3", 1, 2), Mention("5", 4, 7)
    ]  # fmt: skip
    assert sentence.head_of(sentence.mentions[0]) == 0
    assert sentence.head_of(sentence.mentions[3]) == 4


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        ("1\tYes\n", ":1: expected 10 columns, found 2; separate them with one tab each"),
        (GOOD.replace("\t", "  "), ":1: expected 10 columns, found 1"),
        (GOOD.replace("yes", ""), ":1: column 3 is empty; write _"),
        (row("one", "a", "0", "root"), ":1: 'one' is not a word number; expected a number such as 1, 1-2 or 1.1"),
        (row("_", "a", "0", "root"), ":1: '_' is not a word number"),
        (row("2-1", "a"), ":1: '2-1' is not a word number"),
        (row("1", "a", "x", "root"), ":1: the head is 'x'; expected a word number, or 0"),
        (row("1", "a"), ":1: the head of word 1 is _; expected another word of 1 to 1, or 0"),
        (row("1", "a", "1", "dep"), ":1: the head of word 1 is 1;"),
        (GOOD + row("2", "b", "5", "dep"), ":2: the head of word 2 is 5; expected another word of 1 to 2, or 0"),
        ("# one\n" + GOOD + row("3", "b", "1", "dep"), ":3: expected word 2, found word 3; number the words"),
        (row("1", "a", "2", "x") + row("2", "b", "1", "x"), ":1: the heads form a cycle from word 1"),
        (
            row("1-3", "ab") + GOOD + row("2", "b", "1", "x"),
            ":1: expected a token of at most 2 words as in the sentence, found a range up to 3",
        ),
        (
            row("1-2", "ab") + GOOD + row("2-3", "bc") + row("2", "b", "1", "x") + row("3", "c", "1", "x"),
            ":3: expected a range that starts at word 3 or later, found 2-3; correct the range",
        ),
        (GOOD + row("2", "b", "0", "root"), ":2: words 2 and 1 are both roots; expected one"),
        (row("1", "a", "0", "root", "Entity=(7-x"), ":1: a mention of '7' begins without an end; correct Entity="),
        (row("1", "a", "0", "root", "Entity=7)"), ":1: a mention of '7' ends without a beginning; correct Entity="),
        (GOOD.encode() + b"2\tb\xff", ":2: invalid UTF-8; convert the file"),
    ],
)
def test_faults_are_reported_or_skipped_with_their_sentence(tmp_path: Path, faulty: str | bytes, message: str) -> None:
    content = faulty if isinstance(faulty, bytes) else faulty.encode()
    file = write(tmp_path / "a.conllu", content.rstrip(b"\n") + b"\n\n" + GOOD.encode())
    with pytest.raises(ValueError) as error:
        read_treebank(file)
    assert str(error.value).startswith(f"{file}{message}")
    assert str(error.value).endswith("--skip-bad-lines")
    assert "\n" not in str(error.value)
    bank = read_treebank(file, skip_bad_lines=True)
    assert [s.words for s in bank.sentences] == [["Yes"]]
    assert list(bank.skips.values()) == [1]


def test_empty_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no usable sentence found"):
        read_treebank(write(tmp_path / "a.conllu", "# only a comment\n\n"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_treebank(tmp_path / "b.conllu")
    with pytest.raises(FileNotFoundError, match="a directory; give one treebank file"):
        read_treebank(tmp_path)


def test_real_treebanks_equal_the_reference_library(real_data: Callable[[str], Path]) -> None:
    file = real_data("ud_english_gum") / "dev.conllu"
    bank = read_treebank(file)
    assert len(bank) == 1575
    assert (bank.multiword, bank.empty) == (517, 12)
    text = "\n\n".join(file.read_text(encoding="utf-8").split("\n\n")[:40])
    for ours, theirs in zip(bank.sentences, conllu.parse(text), strict=False):
        tokens = [token for token in theirs if isinstance(token["id"], int)]
        assert ours.words == [token["form"] for token in tokens]
        assert [head + 1 for head in ours.heads] == [token["head"] for token in tokens]
        assert ours.relations == [token["deprel"] for token in tokens]
        if "text" in theirs.metadata:
            written = "".join(" " * s + w for s, w in zip(ours.spaces, ours.words, strict=True))
            assert written == theirs.metadata["text"]
    assert sum(len(sentence.mentions) for sentence in bank.sentences) > 7000
