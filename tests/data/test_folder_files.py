"""Files and folders that cannot be read: each is a problem, none ends the run, and no message names a patient."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydicom.valuerep import VR
from support.csv_files import rows_of
from support.dicom_files import breast, mammogram, write
from support.exams import image, predict, record, write_exam, write_weights

from mm3d.cli import main
from mm3d.data.datasets.folder import exam_code, list_files, read_headers
from mm3d.data.dicom.header import read_dataset
from mm3d.predict.exam import Archive, find_exams, read_archive
from mm3d.shared.errors import InputError

NAME = "Canary^Anna"  # a name that must not be in a message, nor the numbers of the study
STUDY = "1.2.826.0.1.3680043.1234567890"
WHY = "cannot be read (Permission denied); make it readable, or leave it out."
SIZES = ("--width", "48", "--length", "96", "--slices", "4", "--jobs", "1")


@contextmanager
def without_privileges(folder: Path) -> Iterator[None]:
    """As a user whom permissions concern: root reads everything."""
    if os.geteuid():
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def archive() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder / "archive"
    finally:
        for path in (*folder.rglob("*"),):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder)


def reasons(archive: Archive) -> list[str]:
    """All problems, of the run and of its exams."""
    problems = [*archive.problems, *(problem for exam in archive.exams for problem in exam.problems)]
    return sorted(problem.reason for problem in problems)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o311])
def test_a_folder_without_permission_is_one_problem(
    archive: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was left out without a word, or ended the run with its name, here a patient's."""
    write_exam(archive / "good", "FFDM L CC", study=STUDY)
    write_exam(archive / NAME, "FFDM R CC", "FFDM R MLO")
    (archive / NAME).chmod(mode)
    (archive / "good" / "closed.dcm").write_bytes(b"")
    (archive / "good" / "closed.dcm").chmod(0)
    with without_privileges(archive.parent):
        (archive / NAME).chmod(mode)
        found = find_exams(read_archive([archive]), "DBT", identifiers=False)
        named = find_exams(read_archive([archive]), "DBT", identifiers=True)
        apart = find_exams(read_archive([archive / "good", archive / NAME]), "DBT", identifiers=False)
        assert reasons(apart) == reasons(found)
        assert predict(archive / NAME, "-o", archive.parent / "out") == 1
    assert f"(a folder (--with-identifiers names it) {WHY})" in capsys.readouterr().err
    assert [exam.code for exam in found.exams] == [exam_code(STUDY)]
    assert reasons(found) == [
        f"a file (--with-identifiers names it) {WHY}",
        f"a folder (--with-identifiers names it) {WHY}",
    ]
    assert f"{archive / NAME} {WHY}" in reasons(named)
    # What lies in the folder of an exam, or beside its folder if there is no other exam, may be of this exam.
    assert [len(exam.problems) for exam in found.exams] == [2]
    assert [len(exam.problems) for exam in apart.exams] == [1]


def test_links_are_followed_once(archive: Path) -> None:
    """An exam on another disk was left out without a word, and a link to a folder above must not go round for ever."""
    write_exam(archive / "exam", "FFDM L CC", study=STUDY)
    write_exam(archive.parent / "other disk", "FFDM R CC", study=STUDY)
    for name, target in (("linked", archive.parent / "other disk"), ("again", archive.parent / "other disk")):
        (archive / name).symlink_to(target)
    (archive / "exam" / "above").symlink_to(archive)
    (archive / "a file").symlink_to(archive / "exam" / "0.dcm")
    (archive / "nothing").symlink_to(archive / "not there")
    (archive / "itself").symlink_to(archive / "itself")
    files, unreadable = list_files(archive)
    assert files == sorted([archive / "a file", archive / "again" / "0.dcm", archive / "exam" / "0.dcm"])
    nothing = "is a link to nothing; mend or remove it."
    assert [file.reason for file in unreadable] == [f"{archive / name} {nothing}" for name in ("itself", "nothing")]
    found = find_exams(read_archive([archive, archive / "linked"]), "DBT", identifiers=False)
    assert sorted(view.name for exam in found.exams for breast in exam.breasts for view in breast.views) == [
        f"{exam_code(STUDY)} LCC FFDM",
        f"{exam_code(STUDY)} RCC FFDM",
    ]
    assert reasons(found) == [f"a file (--with-identifiers names it) {nothing}"] * 2


def test_what_cannot_be_read_is_in_the_exit_code_and_the_lists(
    tmp_path: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_exam(archive / "exam", "FFDM L CC")
    out = tmp_path / "out"
    assert main(["prepare", "folder", str(archive), "-o", str(out), *SIZES]) == 0
    (archive / "gone").symlink_to(archive / "nowhere")
    assert main(["prepare", "folder", str(archive), "-o", str(out), *SIZES]) == 1
    assert "problem: gone: " in capsys.readouterr().out
    assert [row["subject"] for row in rows_of(out / "problems.csv")] == ["gone"]
    weights = write_weights(tmp_path / "w.safetensors")
    assert predict(archive, "-o", tmp_path / "found", "--weights", weights) == 1
    assert record(tmp_path / "found")["problems"] == [
        "a file (--with-identifiers names it) is a link to nothing; mend or remove it."
    ]


def test_a_flipped_bit_anywhere_in_the_header_costs_that_file_only(tmp_path: Path) -> None:
    """It ended the archive with a traceback that named the study."""
    write_exam(tmp_path / "good", "FFDM R CC")
    ds = mammogram(breast(40, 30, "L", 0), "L", "CC")
    ds.StudyInstanceUID, ds.PatientName, ds.PatientID = STUDY, NAME, NAME
    path = write(ds, tmp_path / "bad.dcm")
    whole = path.read_bytes()
    names = ("PatientName", "PatientID", "StudyDate", "StudyInstanceUID", "IssuerOfPatientID")
    read = 0
    for tag in (b"\x10\x00\x10\x00PN", b"\x10\x00\x20\x00LO", b"\x20\x00\x0d\x00UI", b"\x20\x00\x0e\x00UI"):
        at = whole.index(tag) + 4
        flipped = [
            whole[at : at + 2][:i] + bytes([whole[at + i] ^ (1 << bit)]) + whole[at + i + 1 : at + 2]
            for i in (0, 1)
            for bit in range(8)
        ]
        for vr in [*flipped, *(vr.value.encode() for vr in VR if len(vr.value) == 2)]:
            path.write_bytes(whole[:at] + vr + whole[at + 2 :])
            found = find_exams(read_archive([tmp_path]), "DBT", identifiers=False)
            assert any(len(exam.breasts) == 1 for exam in found.exams)
            said = " ".join(problem.reason for exam in found.exams for problem in (*exam.problems, *found.problems))
            assert NAME not in said
            assert STUDY not in said
            for header in (header for exam in found.exams for header in exam.headers.values()):
                assert all(isinstance(str(header.context.get(name, "")), str) for name in names)  # for reports
                read += header.path == path
    assert read > 20  # damage in a name is no reason to refuse the image


def test_what_is_asked_of_a_damaged_header_is_a_sentence(tmp_path: Path) -> None:
    """The readers of datasets and the demo ended with a traceback that named the study."""
    path = write_exam(tmp_path, "FFDM L CC", study=STUDY)[0]
    path.write_bytes(path.read_bytes().replace(b"\x20\x00\x0d\x00UI", b"\x20\x00\x0d\x00UA"))
    assert read_dataset(path, ["PatientName"]).PatientName == "Canary^Anna"
    with pytest.raises(InputError, match=r"0\.dcm has a damaged DICOM header; export it again\.$"):
        read_dataset(path, ["StudyInstanceUID"])


def test_what_a_message_takes_from_a_header_is_never_a_name(tmp_path: Path) -> None:
    ds = image("FFDM", "L", "CC")
    one = write(ds, tmp_path / "one.dcm")
    syntax = str(ds.file_meta.TransferSyntaxUID)
    one.write_bytes(one.read_bytes().replace(syntax.encode(), NAME.ljust(len(syntax)).encode()))
    ds = image("FFDM", "L", "CC")
    ds.SOPClassUID, ds.Modality = "1.2.3", "CANARY"
    write(ds, tmp_path / "two.dcm")
    _, unused = read_folder(tmp_path)
    assert [reason.partition(" ")[2] for reason in unused] == [
        "has the transfer syntax unknown; export it as JPEG 2000 lossless.",
        "is not mammography (modality unknown); leave it out.",
    ]
    assert one.name in unused[0]


def read_folder(folder: Path) -> tuple[int, list[str]]:
    headers, unused = read_headers(list_files(folder)[0])
    return len(headers), [file.reason for file in unused]


def test_names_that_are_not_utf8_and_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first ended `prepare` after all its work; the second can rewrite what a terminal shows."""
    archive = tmp_path / "archive"
    write_exam(archive / "good", "FFDM L CC")
    strange = Path(os.fsdecode(os.fsencode(archive) + b"/\xe9\x1b[2Jproblem"))
    write_exam(strange, "FFDM R CC", study=STUDY)
    (strange / "empty\n=1.dcm").touch()
    out = tmp_path / "out"
    assert main(["prepare", "folder", str(archive), "-o", str(out), *SIZES]) == 1
    said = capsys.readouterr().out
    assert r"problem: \udce9\x1b[2Jproblem/empty =1.dcm" in said
    assert "\x1b" not in said
    assert "views│2" in said.replace(" ", "").replace("┃", "│")
    (row,) = rows_of(out / "problems.csv")
    assert row["subject"].startswith(r"\udce9")
    again = tmp_path / "again"
    assert main(["prepare", "folder", str(archive), "-o", str(again), *SIZES]) == 1
    assert (out / "manifest.csv").read_bytes() == (again / "manifest.csv").read_bytes()
    weights = write_weights(tmp_path / "w.safetensors")
    for options in ((), ("--with-identifiers",)):
        arguments = (archive, "-o", tmp_path / f"found{len(options)}", "--weights", weights, *options)
        capsys.readouterr()
        assert predict(*arguments) == 1
        assert "\x1b" not in capsys.readouterr().out
