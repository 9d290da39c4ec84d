"""Data pipeline from files to batches of token ids: readers, tokenizers and batching.

This package does not import PyTorch or `manyheads.models`.
"""
