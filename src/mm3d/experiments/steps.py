"""One step of a study's workflow, in a process of its own. The Snakefile calls it in the study's folder:

python -m mm3d.experiments.steps cohort NAME CORES | run JOB | gallery | report
"""

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from mm3d.experiments.cohorts import make_cohort
from mm3d.experiments.gallery import draw_gallery
from mm3d.experiments.report import duration, write_report
from mm3d.experiments.results import Result, read_results
from mm3d.experiments.run import OUTPUT, execute, folder_of
from mm3d.experiments.workflow import FAILED, WORKFLOW, read_workflow
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError


def end_with_parent() -> None:
    """End this process when its parent ends. A killed study must not leave processes that its next start would meet."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(step: str, *arguments: str) -> int:
    """Do one step. Returns the exit code."""
    end_with_parent()
    terminal = Console(file=os.fdopen(os.dup(1), "w", encoding="utf-8"), soft_wrap=True)
    name = f"cohort {arguments[0]}" if step == "cohort" else " ".join(arguments) or step
    begun = time.monotonic()
    try:
        terminal.print(f"{name} …")
        said = do_step(step, *arguments)
    except Exception as error:
        traceback.print_exc()
        reason = str(error) if isinstance(error, InputError | OSError) else f"{type(error).__name__}: {error}"
        with Path(FAILED).open("a", encoding="utf-8") as file:
            file.write(f"{name} failed: {' '.join(reason.split())}\n")
        terminal.print(f"{name} failed: {reason}")
        return 1
    terminal.print(f"{name}: {said}{duration(time.monotonic() - begun)}.")
    return 0


def do_step(step: str, *arguments: str) -> str:
    """Returns what to tell of it."""
    workflow = read_workflow(json.loads(Path(WORKFLOW).read_text(encoding="utf-8")))
    study = workflow.study
    if step == "cohort":
        name, cores = arguments
        make_cohort(study, name, workflow.download, int(cores), Console())
    elif step == "run":
        job = study.jobs[arguments[0]]
        divert_output(folder_of(job) / OUTPUT)
        return describe(execute(study, job, workflow.results, workflow.given, workflow.commit)) + "; "
    elif step == "gallery":
        try:
            draw_gallery(study, read_results(study, workflow.results), workflow.results)
        except InputError as error:  # the pictures that were drawn before stay
            say(Console(), f"note: no pictures were drawn: {error}")
    else:
        write_report(study, workflow.results, Path())
    return ""


def divert_output(path: Path) -> None:
    """Let a file have what this process writes to standard output and standard error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def describe(result: Result) -> str:
    named = (("recall@0.25", "R@0.25"), ("recall3d@0.25", "in 3D"), ("auc", "AUC"))
    return ", ".join(f"{text} {value:.3f}" for name, text in named if (value := result.figures.get(name)) is not None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
