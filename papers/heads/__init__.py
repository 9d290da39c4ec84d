"""Accuracies of attention heads next to the published ones of BERT-base (Clark et al. 2019, table 1)."""
