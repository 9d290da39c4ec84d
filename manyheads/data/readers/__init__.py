"""Readers of all data formats. They convert files to data items and report faults with file and line."""
