"""Corpora that require no download because the package contains or generates them."""
