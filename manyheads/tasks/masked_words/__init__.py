"""Masked language modeling and next-sentence prediction, BERT's pretraining (Devlin 2018, section 3.1)."""
