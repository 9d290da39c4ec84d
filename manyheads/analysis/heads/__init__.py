"""Functions of attention heads: statistics of their maps, their importance, and the word relations that they follow.

`statistics` measures any attention maps. `dependency` and `coreference` measure attention maps between words, scored
by `selections`. `probing_classifiers` measures how much syntax all heads contain together.
"""

from manyheads.analysis.heads.statistics import (
    Head,
    HeadStatistics,
    attention_distances,
    clusters,
    divergences,
    entropy,
    importance,
    place,
    rollout,
)

__all__ = [
    "Head", "HeadStatistics", "attention_distances", "clusters", "divergences", "entropy", "importance", "place",
    "rollout",
]  # fmt: skip
