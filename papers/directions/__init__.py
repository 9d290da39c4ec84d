"""Comparison of a bidirectional encoder, a left-to-right encoder and two opposite LSTMs (Devlin 2018, figure 3)."""
