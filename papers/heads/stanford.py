"""Conversion of syntactic relations from Universal Dependencies to the Stanford Dependencies of Clark et al. 2019.

The function `stanford` converts the relations as far as table 1 of the paper needs this. Stanford relations are on the
left, their Universal sources on the right:

    dobj, nn, poss, auxpass, prt   obj, compound (except numbers), nmod:poss, aux:pass, compound:prt
    pobj, prep                     in "sat on it", case is on -> it and obl is it -> sat. In Stanford Dependencies the
                                   noun depends on its preposition, and the preposition on the verb. Converted for
                                   nouns with one preposition.
    aux                            aux, and the mark "to"
    possessive, neg                the case 's, and the advmod "not"; they have no rows in the table

All other words keep their syntactic head and relation. A treebank with Stanford relations is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.analysis.heads.dependency import MARKS

RENAMED = {"obj": "dobj", "compound": "nn", "nmod:poss": "poss", "aux:pass": "auxpass", "compound:prt": "prt"}
NUMERAL = "NUM"  # universal part-of-speech tag


def stanford(
    words: Sequence[str], heads: Sequence[int], relations: Sequence[str], tags: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Convert the syntactic heads and relations of a sentence from Universal to Stanford Dependencies.

    heads  index of each word's syntactic head, from 0; negative for the root
    tags   universal part-of-speech tag of each word
    """
    new_heads, names = list(heads), [RENAMED.get(relation, relation) for relation in relations]
    prepositions: dict[int, list[int]] = {}  # indices of the prepositions of each noun, by the index of the noun
    for word, relation in enumerate(relations):
        lowered = words[word].lower()
        if relation == "case" and heads[word] >= 0:
            if relations[heads[word]] == "nmod:poss" and lowered in MARKS:
                names[word] = "possessive"
            else:
                prepositions.setdefault(heads[word], []).append(word)
        elif relation == "compound" and tags[word] == NUMERAL:
            names[word] = "number"
        elif relation == "mark" and lowered == "to":
            names[word] = "aux"
        elif relation == "advmod" and lowered in ("not", "n't", "n’t"):
            names[word] = "neg"
    for noun, before in prepositions.items():
        kind = relations[noun].partition(":")[0]
        if len(before) == 1 and kind in ("obl", "nmod") and relations[noun] != "nmod:poss":
            new_heads[before[0]], names[before[0]] = heads[noun], "prep"
            new_heads[noun], names[noun] = before[0], "pobj"
    return new_heads, names
