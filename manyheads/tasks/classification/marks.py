"""What a GPT that classifies reads around its texts (Radford 2018, section 3.3 and figure 1).

    start  text  extract                  a text
    start  text  delimiter  text  extract a pair, in its order

The state of the last token, `extract`, is what the labels are read from. The three are new tokens with new embeddings,
as in the paper: GPT-2's vocabulary, whose only special token ends a text, gets them, too.
"""

from __future__ import annotations

from tokenizers import Tokenizer, processors

from manyheads.data.text.tokenizers import with_special_tokens

START, DELIMITER, EXTRACT = MARKS = ("<|start|>", "<|delimiter|>", "<|extract|>")


def marked(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that puts the marks around texts and pairs, its new tokens behind all others; or what does so already."""
    if tokenizer.encode("").tokens == [START, EXTRACT]:
        return tokenizer
    copy = with_special_tokens(tokenizer, as_text=tokenizer.encode_special_tokens)
    copy.add_special_tokens(list(MARKS))
    template = processors.TemplateProcessing(
        single=f"{START} $A {EXTRACT}",
        pair=f"{START} $A {DELIMITER} $B:0 {EXTRACT}",
        special_tokens=[(mark, copy.token_to_id(mark)) for mark in MARKS],
    )
    offsets = [copy.post_processor] if isinstance(copy.post_processor, processors.ByteLevel) else []
    copy.post_processor = processors.Sequence([*offsets, template])
    return copy
