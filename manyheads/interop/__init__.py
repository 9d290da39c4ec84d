"""Conversion between Hugging Face and Manyheads names and configurations: one strict, reversible declaration per
family.
"""
