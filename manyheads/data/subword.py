"""Byte-pair encoding (Sennrich et al. 2016, section 3.2) of raw, cased text, with the `tokenizers` library.

Vocabulary layout (Marian's): `</s>` is 0, `<unk>` is 1, then characters and merged pieces, `<pad>` is the last id.
Words are split at spaces (kept as a leading "▁", so detokenising is exact), at punctuation and between digits; text is
normalised to NFC, runs of spaces and tabs become one space, other whitespace is a character like any other. Hence
decode(encode(x)) == x up to NFC and repeated spaces, whatever characters the training text contained. A character
it did not contain becomes one `<unk>`: no model could know it, and untrained byte pieces would only hide that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
NORMALIZER = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"[ \t]+"), " "), normalizers.Strip()])
SPLITTER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Punctuation("isolated"),  # so no piece can spell a special token
        pre_tokenizers.Digits(individual_digits=True),
    ]
)


def train_bpe(texts: Iterable[str], vocabulary: int, *, min_frequency: int = 2) -> Tokenizer:
    """A tokenizer of at most `vocabulary` ids, the three special ones included; the same texts give the same tokenizer.

    For a joint vocabulary pass the texts of both languages. Merges need a pair seen `min_frequency` times, so a small
    corpus can give fewer ids than asked (a warning says so). Raises ValueError when the characters alone do not fit.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = NORMALIZER, SPLITTER
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,  # <pad> comes last
        min_frequency=min_frequency,
        special_tokens=[END, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([PAD])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.encode_special_tokens = True
    size = tokenizer.get_vocab_size()
    if size > vocabulary:  # the trainer never drops a character
        raise ValueError(
            f"vocabulary={vocabulary}: the text has {size - 3:,} different characters, which with 3 special tokens"
            f" need at least {size:,} ids; ask for more"
        )
    if size < vocabulary:
        warnings.warn(
            f"vocabulary={vocabulary}: the text yields only {size:,} pieces (a merge must occur {min_frequency} times);"
            f" the vocabulary has {size:,} ids",
            stacklevel=2,
        )
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Opens a tokenizer.json; text that spells a special token ("</s>") is read as text, as after `train_bpe`.

    Raises FileNotFoundError, or ValueError when the file is no tokenizer.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path}: not a tokenizer ({str(error).splitlines()[0]}); write it again") from None
    tokenizer.encode_special_tokens = True  # not stored in the file
    return tokenizer


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of every text, with the special tokens that the tokenizer puts around it."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
