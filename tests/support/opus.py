"""Small directory in OPUS-MT's layout: two SentencePiece models, a shared vocabulary, a random Marian model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from tests.support.reference import randomize

ENGLISH = [
    "two men are walking a dog", "a dog, two cats: 42 paws", "The cats don't walk!", "are the dogs walking?",
    "A man & his dog (1999)", "three little cats sing", "he asked: who walks the dog?",
]  # fmt: skip
GERMAN = [
    "zwei Männer führen einen Hund", "ein Hund läuft", "die Katzen laufen nicht: größer", "drei kleine Katzen singen",
    "ein Mann & sein Hund", "Straßen, Wörter und Привет",
]  # fmt: skip
HARD = [
    *ENGLISH, *GERMAN, "", " ", "  two   spaces\tand\na line ", "ﬁne ＡＢＣ １２３ ½ café", "Привет größer ß ßß",
    "東京 🎉🎉 a 🎉", "</s> <pad> dog<unk>", ">>fra<< a dog", ">>fra<<a dog", ">>xyz<< a dog", "a >>fra<< dog",
    ">> a <b", "▁a ▁ dog", "“quoted” – dog’s … don`t", "\u200bzero\u00adwidth\u3000space", "<s> x </s>y", "dog" * 50,
]  # fmt: skip


def sentencepiece_model(texts: list[str], size: int, **options: Any) -> bytes:
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 5), model_writer=made, vocab_size=size, hard_vocab_limit=False,
        **{"model_type": "unigram", "minloglevel": 2, "num_threads": 1, **options},
    )  # fmt: skip
    return made.getvalue()


def write_opus_tokenizer(
    path: Path, *, separate: bool = False, joint: bool = False, kind: str = "unigram", **about: Any
) -> MarianTokenizer:
    """The files of a MarianTokenizer: a fifth of the pieces are missing in the vocabulary, as in some of OPUS-MT's."""
    path.mkdir(parents=True, exist_ok=True)
    texts = {"source": [*ENGLISH, *(GERMAN if joint else [])], "target": [*(ENGLISH if joint else []), *GERMAN]}
    pieces = {}
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        model = sentencepiece_model(texts[side], 90, model_type=kind)
        (path / f"{side}.spm").write_bytes(model)
        processor = SentencePieceProcessor(model_proto=model)
        pieces[name] = [processor.id_to_piece(i) for i in range(3, len(processor)) if i % 5]
    if not separate:
        pieces = {"vocab.json": [*pieces["vocab.json"], *pieces["target_vocab.json"], ">>fra<<", ">>deu<<"]}
    size = min(map(len, pieces.values()))  # where the two differ, transformers takes the source's ids of special tokens
    for name, several in pieces.items():
        tokens = dict.fromkeys(["</s>", "<unk>", *several[:size], "<pad>"])
        (path / name).write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tokenizer_config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate, **about}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **tokenizer_config}))
    return MarianTokenizer.from_pretrained(path)


def write_opus(
    path: Path, *, separate: bool = False, noise: float = 0.2, **settings: Any
) -> tuple[MarianMTModel, MarianTokenizer]:
    """The whole directory, written by transformers."""
    tokenizer = write_opus_tokenizer(path, separate=separate)
    size = tokenizer.vocab_size
    target = len(tokenizer.target_encoder) if separate else size
    if separate:
        settings |= {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": True}
    config = MarianConfig(
        vocab_size=size, decoder_vocab_size=target, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=96, scale_embedding=True, activation_function="swish", dropout=0.0,
        pad_token_id=target - 1, decoder_start_token_id=target - 1, eos_token_id=0, forced_eos_token_id=0,
        **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    model = randomize(MarianMTModel(config), target - 1, noise=noise).eval()
    model.generation_config = GenerationConfig(
        bad_words_ids=[[target - 1]], num_beams=1, max_length=40, pad_token_id=target - 1, eos_token_id=0,
        forced_eos_token_id=0, decoder_start_token_id=target - 1,
    )  # fmt: skip
    model.save_pretrained(path)
    return model, tokenizer
