"""Masked words, as BERT is pretrained (Devlin 2018, section 3.1)."""
