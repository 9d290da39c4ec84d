"""Training runs: recipes (tested configurations), the table of recipes, and the steps common to all runs."""
