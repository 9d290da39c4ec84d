"""Runs of every family that are killed and harmed in many ways, and what has become of them."""
