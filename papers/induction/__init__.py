"""Induction heads during a training (Olsson et al. 2022): their scores, and the in-context score, of kept models."""
