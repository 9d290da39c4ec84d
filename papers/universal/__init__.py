"""Universal Transformers (Dehghani et al. 2018): copying, reversal and addition of strings of digits (section 4.4)."""
