"""Data of a run as one value: location, splits, held-out validation data and report."""
