"""Our own tables: what they do not give back as it was is lost to whoever shares a cohort."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bcs_dbt_download import by_name, download
from support.csv_files import rows_of
from support.downloads import touch

from mm3d.data.datasets import bcs_dbt, tables, write_tables
from mm3d.data.records import Annotation, Breast, Cohort, Key, Label, Laterality, Modality, Position, View
from mm3d.shared.errors import InputError


def sample(folder: Path) -> tuple[Cohort, dict[str, int]]:
    """One of everything that the format can say."""

    def view(
        name: str,
        side: Laterality,
        position: Position,
        findings: tuple[Annotation, ...] | None,
        modality: Modality = "DBT",
    ) -> View:
        file = touch(folder / "images" / f"{name}.dcm")
        return View(name, side, position, modality, (file,), findings, upright=modality == "DBT")

    cancer = Annotation(
        (10, 20, 30.5, 40.25), malignant=True, slice=3, first_slice=1, last_slice=5, kind="mass, spiculated"
    )
    benign = Annotation((1, 2, 3, 4), malignant=False, slice=0, kind="architectural distortion")
    flat = Annotation((5, 6, 7, 8), malignant=True, kind="calcification")
    unplaced = Annotation((1, 1, 2, 2), malignant=False)
    views = (
        view("P1 S1 lcc", "L", "CC", (cancer, benign)),
        view("P1 S1 lcc2", "L", "CC", ()),
        view("P1 S1 lmlo", "L", "MLO", None),
        view("image 17", "L", "CC", (), "FFDM"),
        view("P1 S1 lcc FFDM", "L", "CC", (flat,), "FFDM"),
    )
    breasts = (
        Breast("P1", "S1", "L", "malignant", views, "train", {"density": "c", "vendor": "Ärzte, GmbH"}),
        Breast("P1", "S1", "R", "negative", (view("P1 S1 rcc", "R", "CC", None),), "train"),
        Breast("P1", "S2", "R", "negative", (view("x", "R", "CC", (unplaced,)),), "train", {"density": "a"}),
        Breast("P2", "S1", "R", "malignant", (view("occult", "R", "MLO", ()),), "test", {"bcs_dbt": "cancer"}),
        Breast("P3", "S1", "L", "negative", (view("P3 S1 lcc", "L", "CC", ()),), "test", {"bcs_dbt": "actionable"}),
    )
    return Cohort("sample", breasts), {"P1 S1 lcc": 6, "x": 9}


def test_a_written_cohort_comes_back(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    write_tables.write(cohort, tmp_path, slices)
    back = tables.read(tmp_path)
    assert back.breasts == cohort.breasts
    assert not back.problems
    assert {path.name for path in tmp_path.iterdir()} == {"images", "file-paths.csv", "labels.csv", "boxes.csv"}


def test_readers_of_bcs_dbt_find_its_columns_in_ours(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    write_tables.write(cohort, tmp_path, slices)
    for name, columns in (("file-paths", tables.FILE_PATHS), ("labels", tables.LABELS), ("boxes", tables.BOXES)):
        header = (tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()[0]
        assert tuple(header.split(","))[: len(columns)] == columns
    labels = rows_of(tmp_path / "labels.csv")
    assert all(sorted(row[grade] for grade in tables.GRADES) == ["0", "0", "0", "1"] for row in labels)
    assert labels[-1]["Actionable"] == "1"
    first, second, flat, *_ = rows_of(tmp_path / "boxes.csv")
    assert ",".join(first[column] for column in tables.BOXES) == "P1,S1,lcc,0,3,10,20,20.5,20.25,cancer,0,6"
    assert (second["AD"], second["FirstSlice"]) == ("1", "")
    assert (flat["Modality"], flat["Slice"], flat["VolumeSlices"]) == ("FFDM", "0", "1")
    assert all(row["descriptive_path"] == row["classic_path"] for row in rows_of(tmp_path / "file-paths.csv"))
    assert [row["View"] for row in rows_of(tmp_path / "file-paths.csv")][:5] == ["lcc", "lcc2", "lmlo", "lcc1", "lcc"]


def test_bcs_dbt_survives_the_way_through_our_tables(tmp_path: Path) -> None:
    views = {"lcc": "Cancer", "lmlo": "Cancer", "rcc": "Actionable", "rmlo1": "Benign", "rmlo": "Normal"}
    download(tmp_path, views, ("lcc,0,16,100,200,30,40,cancer,1,49", "rmlo1,0,1,1,2,3,4,benign,0,9"))
    cohort = bcs_dbt.read(tmp_path)
    write_tables.write(cohort, tmp_path, {view.name: 49 for view in cohort.views()})
    assert tables.read(tmp_path).breasts == cohort.breasts
    assert set(rows_of(tmp_path / "file-paths.csv")[0]) == {*tables.FILE_PATHS, "Modality", "Split"}


def test_plain_tables_of_bcs_dbt_are_tables_of_ours(tmp_path: Path) -> None:
    download(tmp_path, {"lcc": "Cancer", "rcc": "Normal"}, ("lcc,0,16,100,200,30,40,cancer,1,49",))
    for kind in ("file-paths", "labels", "boxes"):
        (tmp_path / f"BCS-DBT-{kind}-train-v2.csv").rename(tmp_path / f"{kind}.csv")
    found = by_name(tables.read(tmp_path))
    assert found["rcc"].annotations == ()
    assert found["lcc"].annotations == (
        Annotation((100, 200, 130, 240), True, slice=16, kind="architectural distortion"),
    )
    (tmp_path / "boxes.csv").unlink()  # half a copy must not pass as a cohort that nobody annotated
    with pytest.raises(InputError, match=r"boxes\.csv is missing"):
        tables.read(tmp_path)


def test_a_table_saved_by_pandas_still_reads(tmp_path: Path) -> None:
    cohort, slices = sample(tmp_path)
    write_tables.write(cohort, tmp_path, slices)
    text = (tmp_path / "boxes.csv").read_text(encoding="utf-8")
    floats = text.replace(",0,3,10,20,", ",0,3.0,10.0,20.0,").replace(",1,5,", ",1.0,5.0,")
    assert floats != text
    (tmp_path / "boxes.csv").write_text("\ufeff" + floats, encoding="utf-8")
    labels = (tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()
    numbered = [f"{'' if index == 0 else index - 1},{line}" for index, line in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(numbered), encoding="utf-8")
    assert tables.read(tmp_path).breasts == cohort.breasts


@pytest.mark.parametrize(
    ("table", "old", "new", "name", "reason"),
    [
        ("boxes", "lcc,0,0,5,6,", "lcc,0,3,5,6,", "P1 S1 lcc FFDM", "slice 3"),  # a mammogram has only slice 0
        ("boxes", ",calcification,FFDM", ",calcification,MRI", "P1 S1 lcc MRI", "no other table"),
        ("file-paths", ",x,1", ",x,0", "P1 S2 rcc", "boxes, but its label is Normal and it is not annotated"),
        ("file-paths", ",x,1", ",x,yes", "P1 S2 rcc", "neither 0 nor 1"),
        ("file-paths", "P2,S1,rmlo,", "P2,,rmlo,", "P2  rmlo", "no StudyUID"),
        ("file-paths", "P2,S1,rmlo,", ",S1,rmlo,", " S1 rmlo", "no PatientID"),
        ("file-paths", "images/image 17.dcm,FFDM", "images/image 17.dcm,MRI", "P1 S1 lcc1 MRI", "neither DBT nor FFDM"),
        ("boxes", ",cancer,0,6,1,5,", ",cancer,0,6.5,1,5,", "P1 S1 lcc", "VolumeSlices '6.5' is not a whole number"),
        ("boxes", ",cancer,0,6,1,5,", ",cancer,0,6,5,1,", "P1 S1 lcc", "the visible slices 5 to 1"),
    ],
)
def test_damaged_optional_columns_are_reported(
    tmp_path: Path, table: str, old: str, new: str, name: str, reason: str
) -> None:
    cohort, slices = sample(tmp_path)
    write_tables.write(cohort, tmp_path, slices)
    path = tmp_path / f"{table}.csv"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    problems = {problem.subject: problem.reason for problem in tables.read(tmp_path).problems}
    assert reason in problems[name]


@pytest.mark.parametrize(
    ("files", "changes", "reason"),
    [
        (("../outside.dcm",), {}, "is not in"),
        (("a.dcm", "b.dcm"), {}, "one file per view"),
        (("a.dcm",), {"upright": False}, "upright"),
        (("a.dcm",), {"modality": "FFDM", "upright": False}, "has no slices"),
        (("a.dcm",), {"name": "no slice count"}, "number of its slices"),
        (("a.dcm",), {"annotations": (Annotation((1, 1, 2, 2), False, slice=9),)}, "the volume has 9"),
        (("line\nbreak.dcm",), {}, "would not come back"),
    ],
)
def test_what_the_tables_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, files: tuple[str, ...], changes: dict[str, Any], reason: str
) -> None:
    folder = tmp_path / "cohort"
    given: dict[str, Any] = {"name": "v", "modality": "DBT", "upright": True}
    given |= {"annotations": (Annotation((1, 1, 2, 2), False, slice=0),)} | changes
    view = View(laterality="L", position="CC", files=tuple(folder / name for name in files), **given)
    with pytest.raises(InputError, match=reason):
        write_tables.write(Cohort("c", (Breast("P", "S", "L", "benign", (view,)),)), folder, {"v": 9})
    assert not list(tmp_path.rglob("*.csv"))


def test_attributes_and_breasts_that_would_be_confused_or_lost_are_refused(tmp_path: Path) -> None:
    view = View("v", "L", "CC", "DBT", (tmp_path / "a.dcm",), (), upright=True)
    breast = Breast("P", "S", "L", "negative", (view,), attributes={"Cancer": "1"})
    with pytest.raises(InputError, match="'Cancer'"):
        write_tables.write(Cohort("c", (breast,)), tmp_path, {})
    other = View("w", "L", "CC", "DBT", (tmp_path / "b.dcm",), (), upright=True)
    twice = (Breast("P", "S", "L", "negative", (view,)), Breast("P", "S", "L", "benign", (other,)))
    with pytest.raises(InputError, match="P S L is twice"):
        write_tables.write(Cohort("c", twice), tmp_path, {})
    with pytest.raises(InputError, match="P S L has no label"):
        write_tables.write(Cohort("c", (Breast("P", "S", "L", None, (view,)),)), tmp_path, {})


SLICES = 40
names = st.text(st.sampled_from("abcXYZ012 -_.,;'\"äß"), min_size=1, max_size=8).map(str.strip).filter(bool)
corners = st.tuples(*[st.integers(0, 8000).map(lambda number: number / 4)] * 2)
sizes = st.tuples(*[st.integers(1, 4000).map(lambda number: number / 4)] * 2)


@st.composite
def some_findings(draw: st.DrawFn, modality: Modality, label: Label) -> tuple[Annotation, ...] | None:
    if draw(st.booleans()):
        return draw(st.sampled_from([None, ()]))
    result = []
    for _ in range(draw(st.integers(1, 3))):
        (x, y), (width, height) = draw(corners), draw(sizes)
        first, middle, last = sorted(draw(st.tuples(*[st.integers(0, SLICES - 1)] * 3)))
        ranged = modality == "DBT" and draw(st.booleans())
        result.append(
            Annotation(
                box=(x, y, x + width, y + height),
                malignant=label == "malignant" and draw(st.booleans()),
                slice=middle if modality == "DBT" and draw(st.booleans()) else None,
                first_slice=first if ranged else None,
                last_slice=last if ranged else None,
                kind=draw(st.just("") | names),
            )
        )
    return tuple(result)


@st.composite
def cohorts(draw: st.DrawFn, folder: Path) -> Cohort:
    """Anything that records allow; files are numbers, views too, or what a reader of tables would call them."""
    breasts, count = [], 0
    taken: set[str] = set()
    for patient in draw(st.lists(names, max_size=3, unique=True)):
        split = draw(st.sampled_from(["", "train", "test"]))
        exams = draw(
            st.lists(st.tuples(names, st.sampled_from(get_args(Laterality))), min_size=1, max_size=2, unique=True)
        )
        for exam, side in exams:
            label = draw(st.sampled_from(get_args(Label)))
            views = []
            for _ in range(draw(st.integers(1, 4))):
                count += 1
                modality = draw(st.sampled_from(get_args(Modality)))
                findings = draw(some_findings(modality, label))
                position = draw(st.sampled_from(get_args(Position)))
                number = draw(st.sampled_from(["", "1", "2"]))
                spelt = Key(patient, exam, f"{side}{position}{number}".lower(), modality).name
                name = spelt if spelt not in taken and draw(st.booleans()) else str(count)
                taken.add(name)
                file = folder / f"{count}.dcm"
                views.append(View(name, side, position, modality, (file,), findings, modality == "DBT"))
            attributes = draw(st.dictionaries(names, names, max_size=2))
            breasts.append(Breast(patient, exam, side, label, tuple(views), split, attributes))
    return Cohort("any", tuple(breasts))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_every_cohort_comes_back(tmp_path: Path, data: st.DataObject) -> None:
    cohort = data.draw(cohorts(tmp_path))
    for view in cohort.views():
        touch(view.files[0])
    write_tables.write(cohort, tmp_path, {view.name: SLICES for view in cohort.views()})
    back = tables.read(tmp_path)
    assert back.breasts == cohort.breasts
    assert not back.problems
