"""Attention as convolution (Cordonnier, Loukas & Jaggi 2020)."""
