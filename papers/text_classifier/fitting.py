"""Training of a text classifier on TF-IDF or LSA features, with scikit-learn's logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.errors import UserError, extra
from manyheads.models.tfidf import Tfidf


def fit_tfidf(model: Tfidf, ids: Sequence[NDArray[Any]], labels: Tensor, *, strength: float = 1.0) -> None:
    """Fit a TF-IDF classifier to training texts (token ids) and their label indices, and set the weights of the model.

    strength  inverse of the regularization strength, scikit-learn's C
    """
    with extra("analysis", "TF-IDF"):
        from scipy.sparse import csr_matrix
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import normalize
    c = model.config
    token_ids = [row[(row != c.pad) & (row != c.unknown)] for row in ids]
    starts = np.cumsum([0, *map(len, token_ids)])
    counts = csr_matrix((np.ones(starts[-1]), np.concatenate(token_ids), starts), shape=(len(ids), c.vocab))
    counts.sum_duplicates()
    weighting = TfidfTransformer(sublinear_tf=True)
    features = weighting.fit_transform(counts)  # (texts, V), sparse
    if model.components is not None:
        assert c.components is not None
        if c.components > min(features.shape):
            raise UserError(
                f"model.components is {c.components}: expected at most {min(features.shape):,} "
                f"for {len(ids):,} texts of {c.vocab:,} words"
            )
        svd = TruncatedSVD(c.components, random_state=0)
        features = normalize(svd.fit_transform(features))
        with torch.no_grad():
            model.components.copy_(torch.from_numpy(svd.components_))
    if absent := sorted({*range(len(c.labels))} - {*labels.tolist()}):
        raise UserError(
            f"no training text has the label {c.labels[absent[0]]!r}: "
            "remove the label from names, or add texts that have it"
        )
    regression = LogisticRegression(C=strength, max_iter=1000).fit(features, labels.numpy())
    idf = torch.from_numpy(weighting.idf_)
    idf[[c.pad, c.unknown]] = 0.0
    with torch.no_grad():
        model.idf.copy_(idf)
        model.output.weight.copy_(torch.from_numpy(regression.coef_))
        model.output.bias.copy_(torch.from_numpy(regression.intercept_))
