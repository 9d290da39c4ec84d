"""Runs of every family that are killed or disturbed by faults, and checks of their results."""
