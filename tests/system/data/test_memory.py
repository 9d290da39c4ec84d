"""Memory use while reading data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.tables import table
from tests.unit.data.test_column import pairs

READ = """
import sys
from pathlib import Path
from manyheads.data.readers import column
from manyheads.data.text import store
column.MAX_CHARACTERS_IN_MEMORY, store._CHUNK = 2**16, 1000
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.sources.running_text import DocumentSource
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import train_bpe, train_wordpiece
kind, data, kept = sys.argv[1], sys.argv[2], Path(sys.argv[3])
source = (ParallelSource if kind == "pairs" else DocumentSource)(data=data, cache_folder=kept)
splits = source.read()
source.describe(splits)
source.report(splits)
if kind == "pairs":
    tokenizer = train_bpe(ConcatenatedTexts((splits.train.sources, splits.train.targets)), 400)
    stores = [TokenStore.of(texts, tokenizer, kept) for texts in (splits.train.sources, splits.train.targets)]
else:
    tokenizer = train_wordpiece(ConcatenatedTexts(splits.train.documents), 400)
    TokenizedDocuments.of(splits.train.documents, tokenizer, kept)
print("".join(line for line in Path("/proc/self/status").read_text().splitlines(True) if "VmHWM" in line))
"""


@pytest.mark.parametrize("kind", ["pairs", "documents"])
def test_memory_hardly_grows_with_corpus_size(tmp_path: Path, kind: str) -> None:
    peaks = []
    for count in (5_000, 45_000):
        data = pairs(tmp_path / str(count), count)
        if kind == "documents":
            text = (data / "train.en").read_text().replace("\n", "\n\n")
            data = data / "documents.txt"
            data.write_text(text)
        command = [sys.executable, "-W", "ignore", "-c", READ, kind, str(data), str(tmp_path / f"kept{count}")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peaks.append(int(said.split("VmHWM:")[1].split()[0]) * 1024)
    assert (peaks[1] - peaks[0]) / 40_000 < 230, "bytes for each, which has two texts of 45 to 50 characters"


def test_expanding_parquet_is_refused_early(tmp_path: Path) -> None:
    content = pyarrow.table({"text": ["a" * 2**27], "label": ["x"]})
    pyarrow.parquet.write_table(content, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(ValueError, match="expands to 134,.* bytes, more than 200 times its size"):
        next(table(tmp_path / "a.parquet"))
