"""Hugging Face names and configurations <-> ours: one reversible, strict declaration per family."""
