"""run.json: what made the results of an exam, how long it took, and what could not be read."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mm3d.output.result import ExamResult
from mm3d.shared.files import replacing

RECORD = "run.json"
VERSION = 1  # of run.json
PACKAGES = ("torch", "numpy", "pydicom", "highdicom")  # and the engine, if it is not torch


def read_record(folder: Path) -> dict[str, Any] | None:
    """A folder's run.json; None if there is none that this mm3d can read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("version") == VERSION else None


def write_record(folder: Path, **content: Any) -> None:
    with replacing(folder / RECORD) as partial:
        partial.write_text(json.dumps({"version": VERSION} | content, indent=1), encoding="utf-8")


def write_exam_record(result: ExamResult, folder: Path) -> None:
    views = [
        {
            "view": view.view,
            "modality": view.modality,
            "slices": len(view.frames),
            "score": view.score,
            "findings": len(view.findings),
            "marked": sum(finding.score >= result.threshold for finding in view.findings),
        }
        for view in result.views
    ]
    write_record(
        folder,
        exam=result.code or result.exam,
        method=result.method.settings(),
        files=dict(result.files),
        made=result.predicted_at.isoformat(timespec="seconds"),
        python=platform.python_version(),
        packages={name: version(name) for name in (*PACKAGES, result.method.engine)},
        device=result.method.device,
        views=views,
        breasts=dict(result.breast_scores),
        score=result.score,
        marked=len(result.marked()),
        seconds={name: round(seconds, 3) for name, seconds in result.seconds.items()},
        notes=list(result.notes),
        problems=[problem.reason for problem in result.problems],
        others=result.other_files,
    )
