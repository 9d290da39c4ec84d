"""Tokenizers trained on the user's texts, one function per kind.

All are objects of the `tokenizers` library: `tokenizer.json` holds the whole of them but for one flag, which a model
directory keeps in tokenizer_config.json and `load_tokenizer` sets: text that spells a special token is text. The same
texts give the same file, in any process. Every function raises UserError where the vocabulary is too small to hold
what it must, and warns where the texts yield fewer ids than asked.

Those for translation (`train_bpe`, `train_unigram`) read raw, cased text and have Marian's layout: `</s>` is 0, `<unk>`
is 1, then characters and pieces, `<pad>` is the last id. Words are split at spaces (kept as a leading "▁", so
detokenising is exact), at punctuation and between digits; text is normalised to NFC, runs of spaces and tabs become one
space, other whitespace is a character like any other. Hence decode(encode(x)) == x up to NFC and repeated spaces. A
character that the training text did not have becomes one `<unk>`: no model could know it, and untrained byte pieces
would only hide that. `train_words` is the third of them, the PyTorch tutorial's: it splits at blanks and punctuation.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from manyheads.errors import UserError, extra

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
WORD_TOKENS = (UNKNOWN, PAD, "<bos>", "<eos>")  # ids 0 to 3, as in the PyTorch tutorial
NORMALIZER = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"[ \t]+"), " "), normalizers.Strip()])
SPLITTER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Punctuation("isolated"),  # so no piece can spell a special token
        pre_tokenizers.Digits(individual_digits=True),
    ]
)
_CONTRACTIONS = r"n['’]t\b|['’](?:s|m|d|ll|re|ve)\b"
_WORDS = {"en": rf"\w+(?=n['’]t\b)|{_CONTRACTIONS}|\w+|[^\w\s]"}  # "don't" is do n't, "t-shirt" t - shirt
_OTHER_WORDS = r"\w+(?:-\w+)*-?|[^\w\s]"
_BLANKS = rf" (?=[.,;:!?)\]]|{_CONTRACTIONS})|(?<=[(\[]) "  # that no text has between two words
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
LONGEST_WORD = 500
_LONG = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's: between documents, and where generation ends


def train_wordpiece(
    texts: Iterable[str], vocabulary: int, *, lowercase: bool = True, min_frequency: int = 2
) -> Tokenizer:
    """BERT's tokenizer (Devlin et al. 2019) of at most `vocabulary` ids, [PAD], [UNK], [CLS], [SEP], [MASK] first.

    lowercase      also strips accents, as BERT's uncased models do
    min_frequency  how often a pair of pieces must occur to be merged

    `encode(a)` gives [CLS] a [SEP], `encode(a, b)` gives [CLS] a [SEP] b [SEP] with segments (`type_ids`) 0 and 1.
    """
    pieces = _Texts(texts)
    tokenizer = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers "##a" as it meets it, in the order of a randomly seeded hash table, and breaks ties by number.
    inner = [f"##{c}" for c in _characters(pieces, tokenizer.normalizer) if _continues_a_word(tokenizer, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(vocabulary, 0),
        min_frequency=min_frequency,
        special_tokens=[*BERT_TOKENS, *inner],
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    _check(tokenizer.get_vocab_size(), vocabulary, "special tokens and every character, at a word's start and inside")
    # anew, because the trainer has made "##a" a special token, which decoding would leave out
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
    return _text_is_text(trained)


def train_byte_bpe(texts: Iterable[str], vocabulary: int, *, min_frequency: int = 2) -> Tokenizer:
    """GPT-2's tokenizer (Radford et al. 2019, section 2.2): merged bytes within the words of its expression.

    256 bytes, then merges, <|endoftext|> last; nothing is unknown, and decode(encode(x)) == x for every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary - 1, 0),
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])
    _check(tokenizer.get_vocab_size(), vocabulary, f"256 bytes and {END_OF_TEXT}")
    return _text_is_text(tokenizer)


def train_bpe(texts: Iterable[str], vocabulary: int, *, min_frequency: int = 2) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016, section 3.2) of at most `vocabulary` ids, the three special ones
    included.

    For a joint vocabulary pass the texts of both languages. Merges need a pair seen `min_frequency` times, so a small
    corpus can give fewer ids than asked (a warning says so). Raises UserError when the characters alone do not fit.
    """
    tokenizer = _for_translation(models.BPE(unk_token=UNKNOWN))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,  # <pad> comes last
        min_frequency=min_frequency,
        special_tokens=[END, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    tokenizer.add_special_tokens([PAD])
    characters = f"three special tokens and {tokenizer.get_vocab_size() - 3:,} different characters"
    _check(tokenizer.get_vocab_size(), vocabulary, characters)
    return _text_is_text(tokenizer)


def train_unigram(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Kudo's unigram language model (2018, section 3.2), with the layout and the words of `train_bpe`.

    `</s>` is 0, `<unk>` 1, `<pad>` the last id; `encode` ends with `</s>`. Characters not seen become `<unk>`, one for
    a run of them. Trained with SentencePiece: the trainer in `tokenizers` gives another vocabulary each time.
    """
    with extra("sentencepiece", "a unigram vocabulary"):
        from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    words = Counter(
        word for text in _Texts(texts) for word, _ in SPLITTER.pre_tokenize_str(NORMALIZER.normalize_str(text))
    )
    needed = len(set().union(*words)) + 3
    if needed > vocabulary:
        _check(needed, vocabulary, "three special tokens and every character")
    trained = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in words.items()), input_format="tsv",
        model_writer=trained, model_type="unigram", vocab_size=vocabulary - 1, hard_vocab_limit=False,
        character_coverage=1.0, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, max_sentence_length=1 << 30, eos_id=0, unk_id=1, bos_id=-1, pad_id=-1,
        num_threads=4, minloglevel=2,  # sums depend on the number of threads, so it is fixed
    )  # fmt: skip
    pieces = SentencePieceProcessor(model_proto=trained.getvalue())
    # rounded, because a reader of JSON need not give back all digits of a float
    scores = [(pieces.id_to_piece(i), round(pieces.get_score(i), 8)) for i in range(len(pieces))]
    tokenizer = _for_translation(models.Unigram(scores, unk_id=1))
    tokenizer.add_special_tokens([END, UNKNOWN, PAD])  # only <pad> is new
    _check(tokenizer.get_vocab_size(), vocabulary, "three special tokens and every character")
    return _text_is_text(tokenizer)


def train_character(texts: Iterable[str]) -> Tokenizer:
    """One id per character, unchanged: <|endoftext|> is 0, <unk> 1, then the characters of the texts in their order.

    decode(encode(x)) == x for texts of known characters; any other character becomes one <unk>.
    """
    tokens = [END_OF_TEXT, UNKNOWN, *sorted(_alphabet(_Texts(texts)))]
    return character_tokenizer(tokens, special=[END_OF_TEXT, UNKNOWN])


def character_tokenizer(tokens: Sequence[str], special: Sequence[str]) -> Tokenizer:
    """The tokens by their ids: single characters, and special ones among which is <unk>."""
    # characters that never merge; splitting with a pre-tokenizer does the same at many times the cost
    model = models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token=UNKNOWN, fuse_unk=False)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return _text_is_text(tokenizer)


def train_word_level(texts: Iterable[str], vocabulary: int, *, lowercase: bool = True) -> Tokenizer:
    """The most frequent words, as Keras's TextVectorization has them: [PAD] is 0, [UNK] 1, then words by frequency.

    Punctuation (ASCII) is removed, not replaced by a space: "don't" is "dont", and "<br />" is "br". Words are what
    stands between white space. Unlike Keras, letters beyond ASCII are lowercased too.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=BERT_TOKENS[1]))
    strip = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), strip]) if lowercase else strip
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(vocabulary, 3), special_tokens=list(BERT_TOKENS[:2]), show_progress=False
    )
    tokenizer.train_from_iterator(_Texts(texts), trainer)
    _check(tokenizer.get_vocab_size(), vocabulary, "two special tokens and a word")
    return _text_is_text(tokenizer)


def train_words(texts: Iterable[str], vocabulary: int, language: str, *, begin: bool) -> Tokenizer:
    """The most frequent words and punctuation marks of a language, as the PyTorch tutorial's translator has them.

    language  "en" splits "don't" into "do" and "n't", and "t-shirt" at its hyphen; all others keep hyphens
    begin     whether an encoded text begins with <bos>, as the tutorial's sources do; all end with <eos>

    The four special tokens come first, then the words, the most frequent first. The tutorial splits with spaCy: on
    Multi30k these rules give the same words for 99.5% of the German lines and 99.8% of the English ones. Decoded, marks
    stand where they do in texts, but for quotation marks, whose blanks are not known.
    """
    trained = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    trained.normalizer = NORMALIZER
    trained.pre_tokenizer = _words_of(language)
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(vocabulary, len(WORD_TOKENS) + 1), special_tokens=list(WORD_TOKENS), show_progress=False
    )
    trained.train_from_iterator(_Texts(texts), trainer)
    _check(trained.get_vocab_size(), vocabulary, "four special tokens and a word")
    return word_tokenizer(trained.get_vocab(), language, begin=begin)


def word_tokenizer(vocabulary: Mapping[str, int], language: str, *, begin: bool) -> Tokenizer:
    """The tokenizer of `train_words` with given ids of words, among them the four special tokens."""
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token=UNKNOWN))
    tokenizer.normalizer = NORMALIZER
    tokenizer.pre_tokenizer = _words_of(language)
    tokenizer.add_special_tokens(list(WORD_TOKENS))
    start, end = WORD_TOKENS[2:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}" if begin else f"$A {end}",
        special_tokens=[(token, vocabulary[token]) for token in (start, end)],
    )
    hyphens = [decoders.Replace(Regex(r"(?<=\w) - (?=\w)"), "-")] * (language == "en")
    words = [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]  # with blanks between them
    tokenizer.decoder = decoders.Sequence([*words, decoders.Replace(Regex(_BLANKS), ""), *hyphens])
    return _text_is_text(tokenizer)


def _words_of(language: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_WORDS.get(language, _OTHER_WORDS)), "removed", invert=True)


def _for_translation(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = NORMALIZER, SPLITTER
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer


class _Texts:
    """The texts, cut inside words of more than `LONGEST_WORD` characters: trainers take quadratic time in a word. They
    are gone through anew each time, so that they need not be in memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts) if isinstance(texts, Iterator) else texts
        if not any(text.strip() for text in self._texts):
            count = sum(1 for _ in self._texts)
            raise UserError(f"a vocabulary needs text to be learned from: got {count:,} texts, all of them empty")

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
    """Every character of the normalised texts, in order."""
    return sorted({c for raw in _alphabet(texts) for c in normalizer.normalize_str(raw)})


def _continues_a_word(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the character can stand inside a word: no space, punctuation or Chinese character does."""
    normal = tokenizer.normalizer.normalize_str(f"a{character}")
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)] == [f"a{character}"]


def _check(size: int, vocabulary: int, held: str) -> None:
    if size > vocabulary:  # trainers never drop what the vocabulary must hold
        raise UserError(f"vocabulary={vocabulary}: {held} need at least {size:,} ids; ask for more")
    if size < vocabulary:
        warnings.warn(f"vocabulary={vocabulary}: the texts yield only {size:,} ids", stacklevel=3)


def _text_is_text(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Opens a tokenizer.json; text that spells a special token ("</s>") is read as text, as after `train_bpe`.

    Raises FileNotFoundError, or UserError when the file is no tokenizer.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path}: not a tokenizer ({str(error).splitlines()[0]}); write it again") from None
    return _text_is_text(tokenizer)  # the flag is not stored in the file


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of every text, with the special tokens that the tokenizer puts around it."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def with_special_tokens(tokenizer: Tokenizer, *, as_text: bool) -> Tokenizer:
    """A copy that takes "[MASK]" in a text for text, or for the token, whatever the tokenizer does otherwise."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = as_text  # the one flag that tokenizer.json does not hold
    return copy


def shortened(sequences: Sequence[int | None], limit: int) -> list[int]:
    """The places of `limit` tokens, by `Encoding.sequence_ids`: the special ones, and the beginnings of the texts.

    Of a pair, the longer text is cut first, then both: what the library calls "longest_first", which also makes an
    encoding of each part that it leaves out, of a pair each beside each: gigabytes of two long texts.
    """
    counts = Counter(sequences)
    room = max(0, limit - counts[None])
    shorter, longer = (1, 0) if counts[0] > counts[1] else (0, 1)
    of_shorter = min(counts[shorter], room // 2)
    left = {None: counts[None], shorter: of_shorter, longer: room - of_shorter}
    places = []
    for place, sequence in enumerate(sequences):
        if left[sequence] > 0:
            left[sequence] -= 1
            places.append(place)
    return places
