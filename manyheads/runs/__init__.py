"""Training runs: recipes (tested configurations), their settings, and the steps that all runs have in common."""
