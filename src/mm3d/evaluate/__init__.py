"""Measure predictions against the truth, compare systems, and show the metrics. docs/evaluation.md has the rules."""
