"""A plain folder of exams: a patient with two codes would be in training and in test."""

from pathlib import Path

from support.dicom_files import breast, mammogram, write

from mm3d.data.datasets import folder


def test_all_exams_of_a_patient_have_one_code(tmp_path: Path) -> None:
    for name, number in (("first", "P-1"), ("second", "P-1"), ("other", "P-2")):
        write(mammogram(breast(), PatientID=number), tmp_path / f"{name}.dcm")
    patients = {b.views[0].files[0].stem: b.patient for b in folder.read(tmp_path).breasts}
    assert patients["first"] == patients["second"] != patients["other"]
