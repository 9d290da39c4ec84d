"""Checks of the exercises, one file for each tutorial. Notebooks use `from exercises import textbook as check`."""
