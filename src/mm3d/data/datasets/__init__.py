"""Readers of public datasets as they were downloaded.

A reader is a module with a function `read(folder) -> Cohort`, which reads tables and headers but no pixels. To add one,
write its module and add its line to DATASETS. Nothing is imported until a dataset is read.
"""

import importlib
from collections.abc import Callable
from pathlib import Path

from mm3d.data.records import Cohort

# Name on the command line: module in this folder, what the dataset is.
DATASETS = {
    "bcs-dbt": ("bcs_dbt", "BCS-DBT (Duke), tomosynthesis"),
    "vindr": ("vindr", "VinDr-Mammo, mammograms"),
    "cbis-ddsm": ("cbis_ddsm", "CBIS-DDSM, digitised film"),
    "embed": ("embed", "EMBED, its 2D mammograms"),
    "cmmd": ("cmmd", "CMMD, mammograms"),
    "rsna": ("rsna", "RSNA 2022, mammograms"),
    "inbreast": ("inbreast", "INbreast, mammograms"),
    "images": ("images", "JPEG, PNG or TIFF files with a table of views, labels and boxes"),
    "tables": ("tables", "our own tables format, such as 'mm3d phantom' writes"),
    "folder": ("folder", "any folder of DICOM exams"),
}


def find_reader(name: str) -> Callable[[Path], Cohort]:
    """The function that reads a dataset of DATASETS."""
    return importlib.import_module(f"{__name__}.{DATASETS[name][0]}").read
