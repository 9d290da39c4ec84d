"""Algorithmic tasks on strings of digits: copying, reversal and addition (Dehghani 2018, section 4.4)."""
