"""How good predictions are, as pure functions of numpy arrays: no files, no records, no torch. The rules are in the
docstrings, and in docs/evaluation.md for users."""
