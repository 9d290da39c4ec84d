"""Training: one straight-line loop over a `Task`. Knows no model."""
