"""Corpora that need no download: every machine that has the package has them."""
