"""Log-probabilities of the tokens of a completion, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from manyheads.generation import TextStream
from manyheads.generation.scoring import TokenScore
from manyheads.service import schemas


def log_probabilities(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    echo: Sequence[TokenScore] | None,
    scores: Sequence[TokenScore],
    text: str,
) -> schemas.LogProbabilities:
    """Return the tokens of a completion with their log-probabilities and their offsets in its text.

    prompt  token ids of the prompt
    echo    scores of the prompt's tokens except the first, if the text begins with the prompt; otherwise None
    scores  scores of the generated tokens. Tokens after a stop string are left out of the result
    text    text of the completion
    """

    def name(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False))

    found = schemas.LogProbabilities()
    stream = TextStream(tokenizer, prompt if echo is None else ())
    if echo is not None:
        found.add(name(prompt[0]), None, None, 0)
        stream.push(prompt[0])
    for score in (*(echo or ()), *scores):
        offset = len(stream.text)
        if offset >= len(text) > 0:
            break
        best = {name(token): value for token, value in (*score.best, (score.token, score.log_probability))}
        found.add(name(score.token), score.log_probability, best, offset)
        stream.push(score.token)
    return found
