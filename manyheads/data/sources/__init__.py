"""Data sources. Each describes the data of a run: location, splits, held-out validation data and report."""
