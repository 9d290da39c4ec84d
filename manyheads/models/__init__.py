"""Models, one file per paper.

Each file contains a configuration and a module, built from the layers in `manyheads.core`.
"""
