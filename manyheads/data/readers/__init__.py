"""Readers of all formats: from files to items, with faults located by file and line."""
