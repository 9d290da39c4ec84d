"""What heads do: how sharply and how far they look, which are alike, which matter; which relations they follow.

    with record(model) as maps:
        model.encode(tokens, lengths)
    statistics = HeadStatistics()
    statistics.add({name: calls[0] for name, calls in maps.items()}, lengths)
    print(statistics)

Which head follows which dependency, and which finds antecedents: `dependency` and `coreference`, scored by
`selections`; what all heads know together: `probing_classifiers`.
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
