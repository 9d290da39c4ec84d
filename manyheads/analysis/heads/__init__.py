"""Functions of heads: statistics of attention maps, importance, and the relations that heads follow.

`statistics` measures any maps. `dependency` and `coreference` measure maps between words, scored by `selections`.
`probing_classifiers` measures the syntax that all heads represent together.
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
