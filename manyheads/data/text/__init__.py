"""Conversion of text to batches of token ids: tokenizers, token id files, fixed-length blocks, overlapping windows."""
