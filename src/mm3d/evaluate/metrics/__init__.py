"""Metrics as pure functions of numpy arrays: they know no files, no records and no torch.

The docstring of a metric is its rule; docs/evaluation.md has the rules for users. To add a metric, write its function
here and give it a line in `mm3d/evaluate/table.py`.
"""
