"""The one attention core: everything a Transformer of the canon is assembled from. Depends on torch alone."""
