"""Embedded corpora, which require no download: the package contains or generates them."""
