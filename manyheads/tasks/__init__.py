"""Machine learning tasks: for each task its loss, predictions, metrics, training recipes and saved files."""
