"""Results as DICOM structured reports, which go back into the archive beside the images."""

from mm3d.output.sr.cad_report import write_cad_report
from mm3d.output.sr.measurement_report import write_measurement_report

__all__ = ["write_cad_report", "write_measurement_report"]
