"""Functions of attention heads: statistics of their maps, their importance, and the word relations that they follow.

`statistics` measures attention maps of any kind. `dependency` and `coreference` test if attention heads find related
words, and `selections` computes the scores. `probing_classifiers` measures how much syntax all heads contain together.
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
