"""How each peer is run: a file a library, imported when it is measured."""
