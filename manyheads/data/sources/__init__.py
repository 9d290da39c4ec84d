"""Data sources: a data source object describes the data of a run (location, splits, held-out validation data,
report).
"""
