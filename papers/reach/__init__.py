"""Influence of distant words on the output of a network (Elman 1990, Chollet 2021)."""
