"""Data sources: one object describes the data of a run (location, splits, held-out validation data and report)."""
