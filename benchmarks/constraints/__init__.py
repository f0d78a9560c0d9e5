"""How right and how quick constraints are, palmette's and other engines': see `__main__`."""
