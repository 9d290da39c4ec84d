"""Loss of language models over their size: an LSTM, a stack of convolutions and a Transformer (Kaplan et al. 2020)."""
