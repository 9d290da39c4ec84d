"""Readers, tokenizers, batching: what turns files into batches of token ids. Knows no model and no torch."""
