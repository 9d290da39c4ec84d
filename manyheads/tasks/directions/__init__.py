"""Three ways of reading a text compared (Devlin 2018, figure 3)."""
