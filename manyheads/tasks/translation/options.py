"""Options and results of `translate` and other decoding methods, and the settings of a search that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.generation import Sampling
from manyheads.tasks.translation import MAX_BEAMS
from manyheads.tasks.translation.wording import Wording

FORCED_BEAM = 5  # minimum default beam width with forced words, as in fairseq; greedy decoding places them badly
MAX_ALPHA, MAX_SEED = 10, 2**63 - 1


@dataclass(frozen=True)
class Translation:
    """Translation of one line of text.

    text             translated text
    score            log-probability divided by the length penalty. Several translations of a line are sorted by score
    log_probability  natural logarithm of the probability of the translation
    """

    text: str
    score: float
    log_probability: float

    def __str__(self) -> str:
        return self.text


class Options(TypedDict, total=False):
    """Options of decoding.

    beam         beam width, at most 1024; 1 means greedy decoding. By default, it is the beam width with which the
                 training run was scored, or 4. The default is at least the number of requested translations, and at
                 least 5 with `force`
    alpha        exponent of the length penalty ((5 + length) / 6)^alpha (Wu et al. 2016), from 0 to 10. By default, it
                 is the exponent with which the training run was scored, or 0.6
    truncate     if True, cut texts that are longer than the model's limit. If False, such texts raise UserError
    prefix       text with which every translation begins
    force        one or several words or phrases that occur in every translation, in any order
    ban          one or several words or phrases that never occur in a translation. Only the division into tokens that
                 the tokenizer gives is banned
    no_repeat    length of token sequences that may occur only once in a translation. With 0, sequences may repeat
    min_length   minimum number of tokens of a translation
    copy_unknown if True, the source word with the largest attention weight replaces each unknown word of a translation
                 (Luong 2015b; "PosUnk" in Zhou 2016). It needs a vocabulary with an unknown word
    temperature  temperature with which translations are drawn at random. By default, the best translations are searched
    top_k        number of most probable tokens from which a token is drawn
    top_p        total probability of the most probable tokens from which a token is drawn
    seed         seed of random translations. The translation of a text depends on the seed and on the text's index
    """

    beam: int | None
    alpha: float | None
    truncate: bool
    prefix: str
    force: str | Sequence[str]
    ban: str | Sequence[str]
    no_repeat: int
    min_length: int
    copy_unknown: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int


def decoding_of(options: Options, count: int, defaults: JsonMapping) -> tuple[int, float, Wording, Sampling | None]:
    """Return the beam width, length penalty, constraints and sampling for `count` translations of each text.

    Without sampling, translations are searched for. Raises UserError for invalid options.

    defaults  beam width and length penalty of the model
    """
    given: JsonObject = {name: value for name, value in options.items() if value is not None}
    wording = Wording(**{f.name: given[f.name] for f in fields(Wording) if f.name in given})
    drawn: JsonObject = {name: given[name] for name in ("temperature", "top_k", "top_p") if name in given}
    if drawn and "temperature" not in drawn:
        raise UserError("top_k and top_p apply to random translations: add temperature=1.0")
    if drawn and (idle := [name for name in ("beam", "alpha") if name in given]):
        raise UserError(f"{' and '.join(idle)}: no effect on random translations; leave out temperature or {idle[0]}")
    if drawn and wording.force:
        raise UserError("words can be forced in a search only, not in sampling: leave out force or temperature")
    least = 1 if drawn else max(count, FORCED_BEAM if wording.force else 1)
    beam: int = given.get("beam", max(defaults["beam"], least))
    limits = {"beam": MAX_BEAMS, "alpha": MAX_ALPHA, "seed": MAX_SEED}
    for name, limit in limits.items():
        if not (name == "beam") <= given.get(name, 1) <= limit:
            raise UserError(f"{name} is {given[name]}: expected {int(name == 'beam')} to {limit}")
    if not 1 <= count <= (MAX_BEAMS if drawn else beam):
        raise UserError(f"{count} translations require a beam of at least {max(count, 1)}, found {beam}")
    alpha: float = given["alpha"] if "alpha" in given else defaults["alpha"]
    return beam, alpha, wording, Sampling(**drawn) if drawn else None
