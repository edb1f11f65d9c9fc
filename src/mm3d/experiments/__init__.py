"""`mm3d study`: the paper's comparisons as a Snakemake workflow, and the page that shows their results.

A study is one file in `studies/` (spec.py says what may stand in it). `workflow.py` finds what is missing and starts
Snakemake with the `Snakefile`, whose rules call `steps.py`, each in a process of its own.
"""

import os
import threading
import time


def end_with_parent() -> None:
    """End this process when its parent ends. A killed study must not leave processes that its next start would meet."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
