"""What every reader's tests need: files that are only there, and a look into the cohort that was read."""

from pathlib import Path

from mm3d.data.records import Breast, Cohort, View


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def breast_of(cohort: Cohort, patient: str, laterality: str) -> Breast:
    (found,) = (breast for breast in cohort.breasts if (breast.patient, breast.laterality) == (patient, laterality))
    return found


def view_of(cohort: Cohort, name: str) -> View:
    (found,) = (view for view in cohort.views() if view.name == name)
    return found


def reason_of(cohort: Cohort, subject: str) -> str:
    (reason,) = (problem.reason for problem in cohort.problems if problem.subject == subject)
    return reason
