"""Tags of the words of a text."""
