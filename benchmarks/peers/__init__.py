"""Other libraries, one file each, imported when they are measured."""
