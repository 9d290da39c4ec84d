"""Tokenizers that are trained on the user's texts, with one training function for each kind of tokenizer.

All functions return a `Tokenizer` of the `tokenizers` library. The file `tokenizer.json` contains its complete state
except for one flag. The flag makes text that looks like a special token ordinary text. A model directory stores the
flag in tokenizer_config.json, and `load_tokenizer` sets it. Training is deterministic. Each function raises UserError
if the vocabulary size is too small for the required tokens, and warns if the texts yield fewer tokens than requested.

The tokenizers for translation (`train_bpe`, `train_unigram`) take raw, cased text. As in Marian, the id of `</s>` is 0
and the id of `<unk>` is 1; characters and pieces follow, and `<pad>` is the last id. Words are split at punctuation,
between digits, and at spaces. A leading "▁" marks a space, so that decoding is exact. Text is normalized to NFC, and
runs of spaces and tabs become one space; other white space is ordinary text. Hence decode(encode(x)) == x up to NFC and
repeated spaces. A character that does not occur in the training text becomes one `<unk>`; byte pieces are not used,
because they would be untrained. `train_words` is a third tokenizer for translation, from the PyTorch tutorial; it
splits text at spaces and punctuation.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from manyheads.errors import UserError, extra

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
WORD_TOKENS = (UNKNOWN, PAD, "<bos>", "<eos>")  # special tokens with the ids 0 to 3, as in the PyTorch tutorial
NORMALIZER = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"[ \t]+"), " "), normalizers.Strip()])
SPLITTER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Punctuation("isolated"),  # Separate punctuation marks, so that no piece is spelled like "</s>".
        pre_tokenizers.Digits(individual_digits=True),
    ]
)
_CONTRACTIONS = r"n['’]t\b|['’](?:s|m|d|ll|re|ve)\b"
# regular expressions for the words of a text; in English, "don't" becomes do n't, and "t-shirt" becomes t - shirt
_WORDS = {"en": rf"\w+(?=n['’]t\b)|{_CONTRACTIONS}|\w+|[^\w\s]"}
_OTHER_WORDS = r"\w+(?:-\w+)*-?|[^\w\s]"
# spaces that a decoder inserts between words but that do not occur in ordinary text, such as a space before a comma
_BLANKS = rf" (?=[.,;:!?)\]]|{_CONTRACTIONS})|(?<=[(\[]) "
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # special tokens with the ids 0 to 4
ROBERTA_TOKENS = ("<s>", PAD, END, UNKNOWN)  # special tokens of RoBERTa with the ids 0 to 3; <mask> has the last id
LONGEST_WORD = 500
_LONG = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")
# GPT-2's special token between documents; a model stops generating when it predicts this token
END_OF_TEXT = "<|endoftext|>"


def train_wordpiece(
    texts: Iterable[str], vocabulary: int, *, lowercase: bool = True, min_frequency: int = 2
) -> Tokenizer:
    """Train BERT's WordPiece tokenizer (Devlin et al. 2019) with at most `vocabulary` ids.

    The first ids are [PAD], [UNK], [CLS], [SEP], [MASK]. `encode(a)` gives [CLS] a [SEP]; `encode(a, b)` gives
    [CLS] a [SEP] b [SEP] with the segment ids (`type_ids`) 0 and 1.

    lowercase      True: convert texts to lower case and strip accents, as in BERT's uncased models
    min_frequency  minimum number of times that a pair of pieces must occur to be merged
    """
    pieces = _Texts(texts)
    tokenizer = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The library's trainer numbers "##a" (a character inside a word) in the order of a hash table with a random seed,
    # and breaks ties by these numbers. Fixed ids make training deterministic.
    inner = [f"##{c}" for c in _characters(pieces, tokenizer.normalizer) if _continues_a_word(tokenizer, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(vocabulary, 0),
        min_frequency=min_frequency,
        special_tokens=[*BERT_TOKENS, *inner],
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    _check_size(
        tokenizer.get_vocab_size(), vocabulary, "special tokens and all characters, at the start of a word and inside,"
    )
    # Build a new tokenizer from the vocabulary: the library's trainer has made "##a" a special token, and decoding
    # omits special tokens.
    trained = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=BERT_TOKENS[1]))
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    trained.add_special_tokens(list(BERT_TOKENS))
    separator, start = BERT_TOKENS[3], BERT_TOKENS[2]
    trained.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {separator}",
        pair=f"{start}:0 $A:0 {separator}:0 $B:1 {separator}:1",
        special_tokens=[(token, trained.token_to_id(token)) for token in (start, separator)],
    )
    trained.decoder = decoders.WordPiece()
    return special_tokens_as_text(trained)


def train_byte_bpe(texts: Iterable[str], vocabulary: int, *, min_frequency: int = 2) -> Tokenizer:
    """Train GPT-2's byte-level BPE tokenizer (Radford et al. 2019, section 2.2).

    Bytes are merged only within words, which a regular expression of GPT-2 defines. The ids are first the 256
    bytes, then the merged tokens, then <|endoftext|>. There is no unknown token, and decode(encode(x)) == x for
    every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    _train_on_bytes(tokenizer, texts, vocabulary, min_frequency, first=(), last=END_OF_TEXT)
    return tokenizer


def train_roberta_bpe(
    texts: Iterable[str], vocabulary: int, *, lowercase: bool = False, min_frequency: int = 2
) -> Tokenizer:
    """Train RoBERTa's byte-level BPE tokenizer (Liu et al. 2019, section 4.4) with at most `vocabulary` ids.

    The first ids are <s>, <pad>, </s>, <unk>; the last id is <mask>. `encode(a)` gives <s> a </s>; `encode(a, b)` gives
    <s> a </s></s> b </s>. A text begins with a space, so that a word has the same tokens at the start of a sentence as
    inside.

    lowercase  True: convert texts to lower case. RoBERTa does not
    """
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    mask = AddedToken("<mask>", lstrip=True, special=True)  # The mask replaces a word and the space before it.
    _train_on_bytes(tokenizer, texts, vocabulary, min_frequency, first=ROBERTA_TOKENS, last=mask)
    ids = {token: tokenizer.token_to_id(token) or 0 for token in ROBERTA_TOKENS}  # id 0 is <s>
    start, _, end, _ = ids.items()
    tokenizer.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=True)
    return tokenizer


def _train_on_bytes(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    vocabulary: int,
    min_frequency: int,
    *,
    first: tuple[str, ...],
    last: str | AddedToken,
) -> None:
    """Train the merges of a byte-level BPE tokenizer, with special tokens before and after its vocabulary."""
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary - 1, 0),
        min_frequency=min_frequency,
        special_tokens=list(first),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    tokenizer.add_special_tokens([last])
    _check_size(tokenizer.get_vocab_size(), vocabulary, f"256 bytes and {', '.join((*first, str(last)))}")
    special_tokens_as_text(tokenizer)


def train_bpe(texts: Iterable[str], vocabulary: int, *, min_frequency: int = 2) -> Tokenizer:
    """Train a byte-pair encoding (Sennrich et al. 2016, section 3.2) with at most `vocabulary` ids.

    For a joint vocabulary, pass the texts of both languages. The ids include three special tokens. A pair of pieces
    is merged only if it occurs at least `min_frequency` times. A small corpus may therefore yield fewer ids than
    requested; then a warning is logged. Raises UserError if the vocabulary size is too small for the characters.
    """
    tokenizer = _for_translation(models.BPE(unk_token=UNKNOWN))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,  # The token <pad> is added after training and needs one id.
        min_frequency=min_frequency,
        special_tokens=[END, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    tokenizer.add_special_tokens([PAD])
    characters = f"three special tokens and {tokenizer.get_vocab_size() - 3:,} distinct characters"
    _check_size(tokenizer.get_vocab_size(), vocabulary, characters)
    return special_tokens_as_text(tokenizer)


def train_unigram(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a tokenizer with a unigram language model (Kudo 2018, section 3.2). Words are split as by `train_bpe`.

    The id of `</s>` is 0, the id of `<unk>` is 1, and `<pad>` is the last id; `encode` appends `</s>`. A run of
    characters that did not occur in the training text becomes one `<unk>`. SentencePiece is used for training,
    because the trainer of the `tokenizers` library is not deterministic.
    """
    with extra("sentencepiece", "a unigram vocabulary"):
        from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    words = Counter(
        word for text in _Texts(texts) for word, _ in SPLITTER.pre_tokenize_str(NORMALIZER.normalize_str(text))
    )
    needed = len(set().union(*words)) + 3
    if needed > vocabulary:
        _check_size(needed, vocabulary, "three special tokens and all characters")
    trained = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in words.items()), input_format="tsv",
        model_writer=trained, model_type="unigram", vocab_size=vocabulary - 1, hard_vocab_limit=False,
        character_coverage=1.0, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, max_sentence_length=1 << 30, eos_id=0, unk_id=1, bos_id=-1, pad_id=-1,
        num_threads=4, minloglevel=2,  # The number of threads is fixed, because floating-point sums depend on it.
    )  # fmt: skip
    pieces = SentencePieceProcessor(model_proto=trained.getvalue())
    # Scores are rounded, because a JSON reader may lose the last digits of a float.
    scores = [(pieces.id_to_piece(i), round(pieces.get_score(i), 8)) for i in range(len(pieces))]
    tokenizer = _for_translation(models.Unigram(scores, unk_id=1))
    # END and UNKNOWN keep their ids in the vocabulary; PAD is new and gets the last id.
    tokenizer.add_special_tokens([END, UNKNOWN, PAD])
    _check_size(tokenizer.get_vocab_size(), vocabulary, "three special tokens and all characters")
    return special_tokens_as_text(tokenizer)


def train_character(texts: Iterable[str]) -> Tokenizer:
    """Train a character tokenizer. The id of <|endoftext|> is 0, the id of <unk> is 1; the sorted characters follow.

    For texts of known characters, decode(encode(x)) == x. Each unknown character becomes one <unk>.
    """
    tokens = [END_OF_TEXT, UNKNOWN, *sorted(_alphabet(_Texts(texts)))]
    return character_tokenizer(tokens, special=[END_OF_TEXT, UNKNOWN])


def character_tokenizer(tokens: Sequence[str], special: Sequence[str]) -> Tokenizer:
    """Return a character tokenizer with a given vocabulary.

    tokens   all tokens in the order of their ids: single characters, and special tokens including <unk>
    special  those of the tokens that are special tokens
    """
    # The model is BPE without merges. Splitting the text with a pre-tokenizer gives the same ids, but is many times
    # slower.
    model = models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token=UNKNOWN, fuse_unk=False)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return special_tokens_as_text(tokenizer)


def train_word_level(texts: Iterable[str], vocabulary: int, *, lowercase: bool = True) -> Tokenizer:
    """Train a tokenizer of the most frequent words, like TextVectorization of Keras.

    The first ids are [PAD] and [UNK]; the words follow.

    Words are ordered by frequency and separated by white space. ASCII punctuation is removed, not replaced by a
    space: "don't" becomes "dont", and "<br />" becomes "br". Unlike in Keras, non-ASCII letters are lowercased,
    too.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=BERT_TOKENS[1]))
    strip = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), strip]) if lowercase else strip
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(vocabulary, 3), special_tokens=list(BERT_TOKENS[:2]), show_progress=False
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    _check_size(tokenizer.get_vocab_size(), vocabulary, "two special tokens and one word")
    return special_tokens_as_text(tokenizer)


def train_words(texts: Iterable[str], vocabulary: int, language: str, *, begin: bool) -> Tokenizer:
    """Train a tokenizer of the most frequent words and punctuation marks, as in the PyTorch tutorial on translation.

    language  "en": split "don't" into "do" and "n't", and "t-shirt" at its hyphen. Other languages keep hyphens
    begin     True: an encoded text begins with <bos>, like the source texts of the tutorial. All texts end with
              <eos>

    The first four ids are special tokens; the words follow, ordered by frequency. The tutorial splits text with
    spaCy; on Multi30k, the rules used here give the same words for 99.5% of the German and 99.8% of the English
    lines. Decoding restores the usual spaces around punctuation, except around quotation marks.
    """
    trained = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    trained.normalizer = NORMALIZER
    trained.pre_tokenizer = _word_splitter(language)
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(vocabulary, len(WORD_TOKENS) + 1), special_tokens=list(WORD_TOKENS), show_progress=False
    )
    trained.train_from_iterator(_Texts(texts), trainer)
    _check_size(trained.get_vocab_size(), vocabulary, "four special tokens and one word")
    return word_tokenizer(trained.get_vocab(), language, begin=begin)


def word_tokenizer(vocabulary: Mapping[str, int], language: str, *, begin: bool) -> Tokenizer:
    """Return a tokenizer like `train_words` for a given list of words, including the four special tokens."""
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token=UNKNOWN))
    tokenizer.normalizer = NORMALIZER
    tokenizer.pre_tokenizer = _word_splitter(language)
    tokenizer.add_special_tokens(list(WORD_TOKENS))
    start, end = WORD_TOKENS[2:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}" if begin else f"$A {end}",
        special_tokens=[(token, vocabulary[token]) for token in (start, end)],
    )
    hyphens = [decoders.Replace(Regex(r"(?<=\w) - (?=\w)"), "-")] * (language == "en")
    words = [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]  # The decoder joins words with spaces.
    tokenizer.decoder = decoders.Sequence([*words, decoders.Replace(Regex(_BLANKS), ""), *hyphens])
    return special_tokens_as_text(tokenizer)


def _word_splitter(language: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_WORDS.get(language, _OTHER_WORDS)), "removed", invert=True)


def _for_translation(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = NORMALIZER, SPLITTER
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer


class _Texts:
    """Training texts that a tokenizer's trainer can iterate several times, even if the texts exceed memory.

    Words of more than `LONGEST_WORD` characters are split, because trainers take quadratic time in the length of a
    word.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts) if isinstance(texts, Iterator) else texts
        if not any(text.strip() for text in self._texts):
            count = sum(1 for _ in self._texts)
            raise UserError(f"expected text to learn a vocabulary from, found {count:,} texts that are all empty")

    def __iter__(self) -> Iterator[str]:
        return (piece for text in self._texts for piece in _pieces(text))


def _pieces(text: str) -> list[str]:
    if len(text) <= LONGEST_WORD:
        return [text]
    cuts = [0, *(match.end() for match in _LONG.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


def _alphabet(texts: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for text in texts:
        known.update(text)
    return known


def _characters(texts: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """Return the distinct characters of the texts after normalization, in sorted order."""
    return sorted({c for raw in _alphabet(texts) for c in normalizer.normalize_str(raw)})


def _continues_a_word(tokenizer: Tokenizer, character: str) -> bool:
    """Return True if a character can occur inside a word. Spaces, punctuation marks and Chinese characters cannot."""
    normal = tokenizer.normalizer.normalize_str(f"a{character}")
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)] == [f"a{character}"]


def _check_size(size: int, vocabulary: int, required: str) -> None:
    # If more tokens are required than requested, the library's trainer exceeds the size without an error.
    if size > vocabulary:
        raise UserError(
            f"vocabulary={vocabulary}: {required} require at least {size:,} ids; request a larger vocabulary"
        )
    if size < vocabulary:
        warnings.warn(f"vocabulary={vocabulary}: the texts yield a vocabulary of only {size:,} ids", stacklevel=3)


def special_tokens_as_text(tokenizer: Tokenizer) -> Tokenizer:
    """Let the tokenizer read the names of special tokens in a text as ordinary text, and return it."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from its file tokenizer.json.

    The tokenizer encodes text that is spelled like a special token ("</s>") as ordinary text.

    Raises FileNotFoundError, or UserError if the file does not contain a tokenizer.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The tokenizers library raises plain Exception.
        raise UserError(f"{path}: not a tokenizer ({str(error).splitlines()[0]}); write the file again") from None
    # The file tokenizer.json does not store the flag that makes special tokens in a text ordinary text.
    return special_tokens_as_text(tokenizer)


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, including the special tokens that the tokenizer adds."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def with_special_tokens(tokenizer: Tokenizer, *, as_text: bool) -> Tokenizer:
    """Return a copy of a tokenizer.

    If `as_text` is true, the copy encodes "[MASK]" in a text as ordinary text, otherwise as the special token.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    # The file tokenizer.json does not store the flag that makes special tokens in a text ordinary text.
    copy.encode_special_tokens = as_text
    return copy
