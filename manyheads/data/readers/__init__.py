"""Readers of every format: files become items, with every fault named by file and line."""
