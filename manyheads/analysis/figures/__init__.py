"""The figures and tables of single papers, as data and as pictures."""
