"""Conversion between Hugging Face and Manyheads formats: one strict, reversible declaration per family."""
