"""Strings of digits copied, reversed and added (Dehghani 2018, section 4.4)."""
