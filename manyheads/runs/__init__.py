"""Training runs: recipes, the table of recipes, and the steps common to all runs."""
