"""Each header is parsed once on the way from `mm3d predict` to the report: parsing is slow, and files may change."""

from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import pydicom
import pytest
from support.exams import predict, write_exam, write_weights

IMAGES = ("DBT L CC", "DBT R MLO", "FFDM L MLO")


def test_predict_parses_each_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are other processes; test_prepare_run.py shows that they parse none."""
    parsed: Counter[Path] = Counter()
    read = pydicom.dcmread

    def count(file: BinaryIO, **options: Any) -> pydicom.FileDataset:
        parsed[Path(file.name)] += 1
        return read(file, **options)

    files = write_exam(tmp_path / "exam", *IMAGES)
    weights = write_weights(tmp_path / "tiny.safetensors")
    monkeypatch.setattr(pydicom, "dcmread", count)
    code = predict(tmp_path / "exam", "-o", tmp_path / "out", "--weights", weights, "--with-identifiers")
    assert code == 0
    assert parsed == Counter(files)
