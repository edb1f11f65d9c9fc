"""Readers of public datasets as they were downloaded: each turns a folder into a `Cohort`, without reading pixels.

A reader is a function `read(folder) -> Cohort` in a module named like its dataset.
"""
