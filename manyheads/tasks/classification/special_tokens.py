"""Special tokens around the input of a GPT classifier (Radford 2018, section 3.3 and figure 1).

    start  text  extract                    for a single text
    start  text  delimiter  text  extract   for a pair of texts, in its order

The classification head reads the hidden state of the last token, `extract`. As in the paper, the three tokens are added
to the vocabulary, with new embeddings. GPT-2 gets the same tokens, because its only special token marks the end of a
text.
"""

from __future__ import annotations

from tokenizers import Tokenizer, processors

from manyheads.data.text.tokenizers import with_special_tokens

START, DELIMITER, EXTRACT = SPECIAL_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")


def add_classifier_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of the tokenizer that adds the GPT classifier's special tokens to texts and pairs.

    The new tokens get the ids after the existing tokens. A tokenizer that already adds these special tokens is returned
    unchanged.
    """
    if tokenizer.encode("").tokens == [START, EXTRACT]:
        return tokenizer
    copy = with_special_tokens(tokenizer, as_text=tokenizer.encode_special_tokens)
    copy.add_special_tokens(list(SPECIAL_TOKENS))
    template = processors.TemplateProcessing(
        single=f"{START} $A {EXTRACT}",
        pair=f"{START} $A {DELIMITER} $B:0 {EXTRACT}",
        special_tokens=[(mark, copy.token_to_id(mark)) for mark in SPECIAL_TOKENS],
    )
    offsets = [copy.post_processor] if isinstance(copy.post_processor, processors.ByteLevel) else []
    copy.post_processor = processors.Sequence([*offsets, template])
    return copy
