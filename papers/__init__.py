"""Scripts that reproduce a figure or a theorem of one paper with the public interface of Manyheads.

Each folder has a command, `python -m papers.NAME`, which the paper's page in docs/papers describes. The package is not
installed with Manyheads: run the commands in a clone of the project.
"""
