"""Tasks: for each one its loss, predictions, metrics, recipes and saved files."""
