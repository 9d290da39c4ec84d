"""Figures and tables of individual papers, as data and as pictures."""
