"""Figures and tables of individual papers, each computed as data and drawn as a picture."""
