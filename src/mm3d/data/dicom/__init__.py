"""Reading mammography and tomosynthesis from DICOM, frame by frame, from files that nobody vouches for."""

import logging
import warnings

from pydicom import config

# pydicom's warnings quote what is in the file, patients' names among it. What is wrong with a file we say ourselves.
config.settings.reading_validation_mode = config.IGNORE
logging.getLogger("pydicom").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", module="pydicom")
