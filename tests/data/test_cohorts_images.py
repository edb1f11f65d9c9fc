"""`mm3d prepare images`: pictures have no header, so a box or a side that is read wrongly is noticed by nobody."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.csv_files import write_csv
from support.dicom_files import breast
from support.downloads import breast_of, reason_of, view_of

from mm3d.cli import main
from mm3d.data.datasets import images
from mm3d.data.datasets.assemble import split_patients
from mm3d.data.inputs import grey
from mm3d.data.prepare.prepared import PreparedView, read_breasts
from mm3d.data.records import Annotation, Picture
from mm3d.shared.errors import InputError

COLUMNS = ("file", "patient", "side", "view", "label", "boxes", "pathologies")


def film(side: str = "L") -> NDArray[np.uint8]:
    """A breast of 200 x 240 pixels, 8 bit, with a bright square, a label, and white along the lower edge."""
    pixels = (breast(side=side) // 4).astype(np.uint8)
    x = 40 if side == "L" else 140
    pixels[110:130, x : x + 20] = 200
    pixels[10:25, 95:115] = 255
    pixels[-12:] = 255
    return pixels


def save(path: Path, pixels: NDArray[np.integer]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def films(folder: Path) -> Path:
    save(folder / "films" / "a.png", film())
    save(folder / "films" / "b.png", film("R"))
    write_csv(
        folder / "films.csv",
        COLUMNS,
        'a.png,P1,LEFT,CC,malignant,"[[40, 110, 60, 130], [20, 100, 30, 110]]",MALIGNANT;BENIGN_WITHOUT_CALLBACK',
        'films/b.png,P2,RIGHT,MLO,benign,"[[140, 110, 160, 130]]",BENIGN',
    )
    return folder


def prepare(source: Path, output: Path, *options: str) -> int:
    sizes = ["--width", "100", "--length", "200", "--jobs", "1"]
    return main(["prepare", "images", str(source), "-o", str(output), *sizes, *options])


def prepared_views(folder: Path) -> dict[str, PreparedView]:
    return {view.view.name: view for prepared in read_breasts(folder) for view in prepared.views}


def test_a_table_says_whose_breast_it_is_and_where_the_boxes_are(tmp_path: Path) -> None:
    cohort = images.read(films(tmp_path), modality="film", stretch=1.7)
    assert cohort.problems == ()
    left = breast_of(cohort, "P1", "L")
    assert (left.label, left.attributes, left.split) == ("malignant", {"film": "yes"}, "")
    (view,) = left.views
    assert (view.position, view.modality, view.picture) == ("CC", "FFDM", Picture(stretch=1.7))
    assert view.annotations == (Annotation((40, 110, 60, 130), True), Annotation((20, 100, 30, 110), False))
    right = view_of(cohort, "films/b")
    assert (right.laterality, right.position, right.annotations) == (
        "R",
        "MLO",
        (Annotation((140, 110, 160, 130), False),),
    )


def test_a_table_with_a_row_for_each_box_and_names_of_its_own_is_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / f"{name}.jpg", np.repeat(film()[..., None], 3, axis=2))
    write_csv(
        tmp_path / "manifest.csv",
        ("jpg", "PatientID", "StudyUID", "View", "X", "Y", "Width", "Height", "Class"),
        "one.jpg,P1,S1,lmlo2,40,110,20,20,cancer",
        "one.jpg,P1,S1,lmlo2,20,100,10,10,benign",
        "two.jpg,P1,S1,lcc,40,110,20,20,benign",
    )
    names = {"file": "jpg", "patient": "PatientID", "exam": "StudyUID", "view": "View", "label": "Class"}
    names |= {"x": "X", "y": "Y", "w": "Width", "h": "Height"}
    cohort = images.read(tmp_path, columns=names, modality="DBT")
    whole = breast_of(cohort, "P1", "L")
    assert (whole.exam, whole.label, len(whole.views)) == ("S1", "malignant", 2)
    assert view_of(cohort, "one").position == "MLO"
    assert view_of(cohort, "one").annotations == (
        Annotation((40, 110, 60, 130), True, slice=0),
        Annotation((20, 100, 30, 110), False, slice=0),
    )
    with pytest.raises(InputError, match="no column 'Side'"):
        images.read(tmp_path, columns=names | {"side": "Side"})


def test_a_table_may_lie_elsewhere_and_must_have_whole_boxes(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a" / "1.png", film())
    save(tmp_path / "in" / "b" / "1.png", film())
    table = write_csv(
        tmp_path / "t.csv", ("file", "patient", "view", "x1", "y1", "x2", "y2", "label"), "b/1.png,P,lcc,1,2,3,4,benign"
    )
    (view,) = images.read(tmp_path / "in", table=table).views()
    assert view.files == (tmp_path / "in" / "b" / "1.png",)
    assert view.annotations == (Annotation((1, 2, 3, 4), False),)
    write_csv(table, ("file", "patient", "view", "x1", "y1", "label"), "b/1.png,P,lcc,1,2,benign")
    with pytest.raises(InputError, match="no column x2, y2, which its boxes need"):
        images.read(tmp_path / "in", table=table)
    with pytest.raises(InputError, match="0 CSV files"):
        images.read(tmp_path / "in")


def test_boxes_of_a_coco_file_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / f"{name}.png", film())
    image = {"patient": "P1", "side": "L", "width": 200, "height": 240}
    content = {
        "images": [
            image | {"id": 7, "file_name": "a.png", "view": "CC"},
            image | {"id": 8, "file_name": "b.png", "view": "MLO", "label": "negative", "patient": "P2"},
        ],
        "categories": [{"id": 1, "name": "malignant"}, {"id": 2, "name": "benign"}],
        "annotations": [
            {"image_id": 7, "category_id": 1, "bbox": [40, 110, 20, 20]},
            {"image_id": 7, "category_id": 2, "bbox": [20, 100, 10, 10]},
        ],
    }
    table = tmp_path / "coco.json"
    table.write_text(json.dumps(content))
    cohort = images.read(tmp_path, table=table)
    assert breast_of(cohort, "P1", "L").label == "malignant"
    assert view_of(cohort, "a").annotations == (
        Annotation((40, 110, 60, 130), True, kind="malignant"),
        Annotation((20, 100, 30, 110), False, kind="benign"),
    )
    assert view_of(cohort, "b").annotations == ()
    table.write_text(json.dumps(content | {"images": [{"id": 7, "file_name": "a.png"}]}))
    with pytest.raises(InputError, match="no patient and no view"):
        images.read(tmp_path, table=table)


def test_rows_that_cannot_be_right_are_left_out(tmp_path: Path) -> None:
    folder = films(tmp_path)
    save(folder / "more" / "a.png", film())
    write_csv(
        folder / "films.csv",
        (*COLUMNS, "width", "height"),
        'a.png,P1,LEFT,CC,malignant,"[[1, 1, 9, 9]]",,,',
        'films/a.png,P1,LEFT,CC,malignant,"[[1, 1, 9, 9], [2, 2, 9, 9], [3, 3, 9, 9]]",MALIGNANT;BENIGN,,',
        'films/b.png,P2,RIGHT,CC,benign,"[[1, 1, 9, 9]]",,400,400',
        "gone.png,P3,RIGHT,CC,benign,,,,",
        "more/a.png,P4,BOTH,CC,benign,,,,",
    )
    cohort = images.read(folder)
    assert "2 such files" in reason_of(cohort, "a.png")
    assert "3 boxes and 2 pathologies" in reason_of(cohort, "films/a.png")
    assert view_of(cohort, "films/a").annotations is None
    assert "200 x 240 pixels, and the table says 400 x 400" in reason_of(cohort, "films/b.png")
    assert "0 such files" in reason_of(cohort, "gone.png")
    assert "'BOTH' is none of" in reason_of(cohort, "more/a.png")


def test_boxes_follow_the_stretch_and_the_breast_alone_is_kept(tmp_path: Path) -> None:
    assert prepare(films(tmp_path / "in"), tmp_path / "out", "--stretch", "1.7", "--modality", "film") == 0
    for view in prepared_views(tmp_path / "out").values():
        assert view.image().dtype == np.uint8  # as many bits as the files have
        image = grey(view.image()[0])
        square = (view.annotations() or ())[0]
        x1, y1, x2, y2 = (round(value) for value in square.box)
        assert (square.box[3] - square.box[1]) / (square.box[2] - square.box[0]) == pytest.approx(1.7, rel=0.02)
        bright = image > 0.7
        assert bright[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1].all()
        bright[y1 - 2 : y2 + 2, x1 - 2 : x2 + 2] = False
        assert not bright.any()  # neither the label nor the white edge
        assert image[:, :5].mean() > image[:, -5:].mean()  # the chest wall is on the left


@pytest.mark.parametrize("kind", ["uint16 tiff", "uint16 png", "colours", "pages", "text"])
def test_pictures_of_every_depth_are_read_and_others_refused(tmp_path: Path, kind: str) -> None:
    name = "a.tif" if kind in ("uint16 tiff", "pages") else "a.png"
    write_csv(tmp_path / "in" / "t.csv", COLUMNS, f'{name},P1,L,CC,malignant,"[[40, 110, 60, 130]]",')
    path = tmp_path / "in" / name
    if kind.startswith("uint16"):
        pixels = film().astype(np.uint16) * 16
        pixels[pixels == 255 * 16] = 4095
        save(path, pixels)
    elif kind == "colours":
        save(path, np.stack([film(), film(), film() // 2], axis=2))
    elif kind == "pages":
        Image.fromarray(film()).save(path, save_all=True, append_images=[Image.fromarray(film())])
    else:
        path.write_text("no picture")
    code = prepare(tmp_path / "in", tmp_path / "out")
    if kind.startswith("uint16"):
        (view,) = prepared_views(tmp_path / "out").values()
        (square,) = view.annotations() or ()
        x1, y1, x2, y2 = (round(value) for value in square.box)
        assert code == 0
        assert (view.image()[0, y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] > 60000).all()
    else:
        words = {"colours": "colour picture", "pages": "2 pages", "text": "cannot be read as a picture"}
        assert code == 1
        assert words[kind] in (tmp_path / "out" / "problems.csv").read_text()


def test_a_share_of_the_patients_is_for_validation_whatever_else_the_table_has(tmp_path: Path) -> None:
    rows = [f"{number}.png,P{number},L,CC,benign,," for number in range(200)]
    for number in range(200):
        save(tmp_path / f"{number}.png", film()[:4, :4])
    table = write_csv(tmp_path / "t.csv", COLUMNS, *rows)
    split = {b.patient: b.split for b in split_patients(images.read(tmp_path), 0.2).breasts}
    assert set(split.values()) == {"train", "validation"}
    assert 25 <= list(split.values()).count("validation") <= 55
    write_csv(table, COLUMNS, *rows[:50])
    again = {b.patient: b.split for b in split_patients(images.read(tmp_path), 0.2).breasts}
    assert again == {patient: split[patient] for patient in again}
    write_csv(table, (*COLUMNS, "split"), *(f"{row},test" for row in rows))
    with pytest.raises(InputError, match="splits of its own"):
        split_patients(images.read(tmp_path), 0.2)


def test_options_for_pictures_are_refused_for_other_datasets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "folder", str(tmp_path), "-o", str(tmp_path / "out"), "--stretch", "1.7"]) == 1
    assert "--stretch is for the dataset images" in capsys.readouterr().err


def test_the_slice_of_a_single_slice_is_that_of_the_volume_it_was_taken_from(tmp_path: Path) -> None:
    """A box on slice 16 of the volume is on the only slice of the picture."""
    save(tmp_path / "a.png", film())
    columns = ("file", "patient", "side", "view", "label", "boxes", "slice")
    write_csv(tmp_path / "t.csv", columns, 'a.png,P1,L,CC,malignant,"[[40, 110, 60, 130]]",16')
    cohort = images.read(tmp_path, modality="DBT")
    assert view_of(cohort, "a").annotations == (Annotation((40, 110, 60, 130), True, slice=0),)
