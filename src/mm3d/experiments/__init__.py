"""`mm3d study`: the paper's comparisons as a Snakemake workflow, and the page that shows their results.

A study is one file in `studies/` (spec.py says what may stand in it). `workflow.py` finds what is missing and starts
Snakemake with the `Snakefile`, whose rules call `steps.py`, each in a process of its own.
"""
