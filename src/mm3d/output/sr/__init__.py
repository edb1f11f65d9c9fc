"""Results as DICOM structured reports, which go back into the archive beside the images they are of."""

from mm3d.output.sr.cad_report import write_cad_report
from mm3d.output.sr.measurement_report import write_measurement_report
from mm3d.output.sr.reported import Algorithm, ReportedExam, ReportedFinding, ReportedView, UnreadView

__all__ = [
    "Algorithm",
    "ReportedExam",
    "ReportedFinding",
    "ReportedView",
    "UnreadView",
    "write_cad_report",
    "write_measurement_report",
]
