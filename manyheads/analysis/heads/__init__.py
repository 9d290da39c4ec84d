"""What heads do: how sharply and how far they look, which are alike, which matter; which relations they follow.

`statistics` looks at any maps; `dependency` and `coreference` at maps between words, scored by `selections`;
`probing_classifiers` measures what all heads know together.
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
