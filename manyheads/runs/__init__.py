"""What can be trained: recipes as values, the table of them, and the skeleton of a run."""
