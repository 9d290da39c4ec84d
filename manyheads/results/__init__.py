"""Measured runs, one JSON record each; every score shown anywhere is generated from them."""
