"""Comparison of three directions of reading a text (Devlin 2018, figure 3)."""
