"""`mm3d.load`: the detector of scripts and notebooks.

It goes the way of `mm3d predict`, so that the same images have the same results, to the bit. Arrays go through
temporary npy files, because that command's worker processes read files. docs/python.md shows it.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mm3d.data.inputs import InputName
from mm3d.data.prepare.run import start_workers
from mm3d.data.prepare.view import MAX_PIXELS
from mm3d.data.records import is_view
from mm3d.model import weights as weights_files
from mm3d.model.config import DeviceName, EngineName, PrecisionName
from mm3d.output.predictions import Finding
from mm3d.output.report.page import make_page
from mm3d.output.result import ExamResult, Method
from mm3d.predict.exam import HIDDEN, Exam, predict_exam
from mm3d.predict.folder import keep_results, open_folder
from mm3d.predict.pictures import PictureOptions
from mm3d.predict.run import Options, make_setup, only_exam, read_given, refuse_empty, remarks, sort_exams
from mm3d.predict.settings import PredictSettings
from mm3d.shared.environment import prepare_torch
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.files import remove_partial, working_folder

if TYPE_CHECKING:
    from mm3d.model.detector import Detector
    from mm3d.output.still import Still

Paths: TypeAlias = str | Path | Sequence[str | Path]
Spacing: TypeAlias = Sequence[float]
Modality: TypeAlias = Literal["FFDM", "film", "DBT"]
SPACINGS = "from slice to slice, from row to row and from column to column in mm, such as spacing=(1, 0.1, 0.1)"
IFRAME = '<iframe srcdoc="{page}" width="100%" height="{height}" style="border:0" sandbox="allow-scripts"></iframe>'


@dataclass(frozen=True, kw_only=True)
class ExamFinding(Finding):
    """A finding with the view that it is in.

    Parameters
    ----------
    view : lcc, lmlo, rcc or rmlo; a repeated view has a number behind it, such as lcc1.
    marked : whether it reaches the operating point, and no higher finding shows the same place.
    """

    view: str
    marked: bool

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The weight w (S,) of each slice that the model looked at; None if the model has none, or one slice."""
        return None if self.slice_weights is None else np.array(self.slice_weights)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictedExam(ExamResult):
    """The result of `Model.predict`: an `ExamResult` that can be shown and saved."""

    source: Exam
    method_asked: Method  # the method without the device on which it ran
    folder: "tempfile.TemporaryDirectory[str]"  # with the images, which `frames` are mapped from

    def __repr__(self) -> str:
        more = [f"{len(said)} {word}" for word in ("problems", "warnings", "notes") if (said := getattr(self, word))]
        return f"<exam {self.code}: {'; '.join([self.describe(), *more])}>"

    @property
    def findings(self) -> list[ExamFinding]:
        """All findings of all views, the highest score first, whether they reach the operating point or not."""
        marked = {(view.view, id(finding)) for view, finding in self.marked()}
        found = [
            ExamFinding(**_values(finding), view=view.view, marked=(view.view, id(finding)) in marked)
            for view in self.views
            for finding in view.findings
        ]
        return sorted(found, key=lambda finding: -finding.score)

    def show(
        self, view: str | None = None, slice: int | None = None, *, viewer: bool = False, height: int = 720
    ) -> "Still | Viewer":
        """Show the views with their boxes: what a notebook's cell ends with.

        Parameters
        ----------
        view : only this one, such as lcc; not given: all.
        slice : a slice of this view, from 0; not given: that of the highest marked finding of each view.
        viewer : the whole report page instead, in which one scrolls through the slices.
        height : of the viewer, in pixels.

        Returns
        -------
        A matplotlib figure, or the page. A notebook shows either; a script calls `savefig` of the figure.
        """
        if viewer:
            return Viewer(make_page(self), height)
        from mm3d.output.still import draw_exam  # matplotlib takes a second to import

        return draw_exam(self, view, slice)

    def save(self, folder: str | Path) -> Path:
        """Write what `mm3d predict -o folder` writes: predictions, report, structured reports and run.json.

        As there, files that mm3d did not make, or made of another exam or with other settings, are refused.
        """
        output = Path(folder)
        if output.exists() and not output.is_dir():
            raise InputError(f"{output} is a file; give a folder.")
        output.mkdir(parents=True, exist_ok=True)
        remove_partial(output)
        if not open_folder(output, [self.source], self.method_asked):
            raise InputError(f"{output} holds the results of several exams; give this one a folder of its own.")
        with working_folder(output) as work:
            keep_results(self, self.source, work, output, self.method_asked)
        return output


@dataclass(frozen=True)
class Viewer:
    """A report page, which notebooks show in a frame."""

    page: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        quoted = self.page.replace("&", "&amp;").replace('"', "&quot;")
        return IFRAME.format(page=quoted, height=self.height)


class Model:
    """Weights that are loaded, with all settings of a prediction. `mm3d.load` makes it.

    Attributes
    ----------
    detector : the `mm3d.model.detector.Detector`, ready to predict.
    method : the weights' name and intended use, the operating point, and every setting.
    """

    def __init__(self, options: Options) -> None:
        self._setup = make_setup(options, synthetic=False)
        self.method = self._setup.method
        self.detector: Detector = self._setup.load_model()
        self._loaded: Future[Detector] = Future()
        self._loaded.set_result(self.detector)

    def __repr__(self) -> str:
        return f"<mm3d weights {self.method.weights}: {self.method.intended_use}>"

    def predict(
        self,
        images: Paths | ArrayLike | Mapping[str, ArrayLike],
        *,
        spacing: Spacing | None = None,
        side: Literal["L", "R"] | None = None,
        view: Literal["CC", "MLO"] | None = None,
        modality: Modality | None = None,
        table: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        stretch: float | None = None,
        patient: str = "array",
        exam: str = "1",
    ) -> PredictedExam:
        """Predict one exam.

        Parameters
        ----------
        images : a folder or file, or several, as of `mm3d predict`; or an array (slices, rows, columns) or
            (rows, columns) of grey values, bright where there is tissue; or a table of arrays by their views, such as
            {"lcc": volume, "lmlo": other}. A breast may have one view, and CC and MLO look at each other if both are
            there.
        spacing : of arrays, from slice to slice, row to row and column to column, in mm; of mammograms, two numbers.
        side, view : of a single array.
        modality : of pictures and arrays that have one slice, where nothing else says it (default: FFDM).
        table, columns, stretch : of pictures and arrays in files, as the options of `mm3d predict`.
        patient, exam : of arrays, what predictions call them.

        Returns
        -------
        PredictedExam
            With `findings`, `views`, `score`, `breast_scores`, `show` and `save`. What could not be read is in
            `problems`.
        """
        of_arrays = {"spacing": spacing, "side": side, "view": view}
        of_files = {"table": table, "columns": columns, "stretch": stretch}
        if _are_paths(images):
            _refuse_given(of_arrays, "for arrays; files say it themselves, or their table does")
            pictures = _picture_options(modality, table, columns, stretch)
            return self._predict_only(_list_paths(images), pictures)  # type: ignore[arg-type]
        _refuse_given(of_files, "for files; give spacing, side and view of arrays")
        arrays = _name_arrays(images, side, view)
        for name, array in arrays.items():
            _check_array(name, array)
        slice_spacing, row_spacing, column_spacing = _check_spacing(spacing, arrays)
        with tempfile.TemporaryDirectory(prefix="mm3d-") as folder:
            said = {"patient": patient, "exam": exam, "pixel_spacing": column_spacing, "slice_spacing": slice_spacing}
            for name, array in arrays.items():
                np.save(Path(folder, f"{name}.npy"), np.ascontiguousarray(array), allow_pickle=False)
                Path(folder, f"{name}.json").write_text(json.dumps(said | {"view": name}), encoding="utf-8")
            options = PictureOptions(modality=modality, stretch=row_spacing / column_spacing)
            return self._predict_only([Path(folder)], options, "the array")

    def predict_all(
        self,
        images: Paths,
        *,
        modality: Modality | None = None,
        table: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        stretch: float | None = None,
    ) -> Iterator[PredictedExam]:
        """Predict every exam in folders and files, one after the other. Parameters are those of `predict`.

        An exam that cannot be predicted is left out with a warning, and so is a file that cannot be read and does not
        say of which exam it is.
        """
        given = _list_paths(images)
        found = read_given(given, _picture_options(modality, table, columns, stretch))
        archive = sort_exams(found, self._setup)
        refuse_empty(archive, given)
        for problem in archive.problems:
            warnings.warn(problem.reason, stacklevel=2)
        for one in archive.exams:
            try:
                predicted = self._predict(one)
            except Exception as error:  # whatever is wrong with an exam, the others are predicted
                warnings.warn(f"exam {one.code}: {describe_error(error)}", stacklevel=2)
            else:
                yield predicted

    def _predict_only(
        self, given: Sequence[Path], pictures: PictureOptions, called: str = "a file (identifiers=True names it)"
    ) -> PredictedExam:
        try:
            archive = sort_exams(read_given(given, pictures), self._setup)
            refuse_empty(archive, given)
            if len(archive.exams) > 1:
                raise InputError(f"{given[0]} has {len(archive.exams)} exams; predict them with predict_all.")
            return self._predict(only_exam(archive))
        except InputError as error:
            raise InputError(str(error).replace(f"a file{HIDDEN}", called)) from None

    def _predict(self, exam: Exam) -> PredictedExam:
        setup = self._setup
        start_workers()
        folder = tempfile.TemporaryDirectory(prefix="mm3d-", ignore_cleanup_errors=True)
        exam = replace(exam, notes=(*exam.notes, *remarks(exam, setup)))
        result = predict_exam(exam, setup, self._loaded, Path(folder.name), 0.0)
        return PredictedExam(**_values(result), source=exam, method_asked=setup.method, folder=folder)


def load(
    weights: str | Path,
    *,
    device: DeviceName = "auto",
    engine: EngineName | None = None,
    precision: PrecisionName = "auto",
    input: InputName | None = None,
    threshold: float | None = None,
    operating_point: str | None = None,
    settings: PredictSettings | None = None,
    preparation: Mapping[str, Any] | None = None,
    chunk: int | None = None,
    jobs: int | None = None,
    max_pixels: int = MAX_PIXELS,
    identifiers: bool = False,
) -> Model:
    """Load weights, ready to predict. This imports torch.

    Parameters
    ----------
    weights : the name of weights that come with mm3d (dbt, ffdm, mammo), a weights file, a run folder, or a repository
        on the hub, such as hf://owner/name.
    device, engine, precision, input, threshold, operating_point, chunk, jobs, max_pixels : as the options of
        `mm3d predict`; `max_pixels` is not in millions.
    settings : how the model's proposals become findings.
    preparation : what differs from the preparation of the weights, such as {"slices": 8}.
    identifiers : names of patients may be in results, and names of files in messages.

    Returns
    -------
    Model
        Call its `predict`.
    """
    if "torch" not in sys.modules:
        prepare_torch()
    options = Options(
        settings=settings or PredictSettings(),
        weights=weights_files.find(weights),
        input=input,
        chunk=chunk,
        engine=engine,
        precision=precision,
        device=device,
        threshold=threshold,
        operating_point=operating_point,
        identifiers=identifiers,
        preparation=dict(preparation) if preparation else None,
        jobs=jobs,
        max_pixels=max_pixels,
    )
    return Model(options)


def _values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, not copied."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _are_paths(images: Any) -> bool:
    several = isinstance(images, list | tuple) and bool(images) and all(isinstance(one, str | Path) for one in images)
    return several or isinstance(images, str | Path)


def _list_paths(images: Paths) -> list[Path]:
    if not _are_paths(images):
        raise InputError("Give a folder or a file, or several.")
    given = [Path(one) for one in ([images] if isinstance(images, str | Path) else images)]
    for path in given:
        if (path / "cohort.json").is_file():
            raise InputError(f"{path} is a prepared folder; predict it with 'mm3d predict {path} -o OUT'.")
    return given


def _picture_options(
    modality: Modality | None, table: str | Path | None, columns: Mapping[str, str] | None, stretch: float | None
) -> PictureOptions:
    return PictureOptions(Path(table) if table else None, dict(columns) if columns else None, modality, stretch)


def _refuse_given(options: Mapping[str, Any], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} {why}.")


def _name_arrays(images: Any, side: str | None, view: str | None) -> dict[str, NDArray[Any]]:
    """The arrays by their views, such as lcc."""
    if not isinstance(images, Mapping):
        if side not in ("L", "R") or view not in ("CC", "MLO"):
            raise InputError('An array needs its side ("L" or "R") and its view ("CC" or "MLO"): give both.')
        images = {f"{side}{view}": images}
        side = view = None
    if side is not None or view is not None:
        raise InputError("In a table of arrays, the names are the views; leave out side and view.")
    if not images:
        raise InputError("The table of arrays is empty; give at least one view.")
    for name in images:
        if not (isinstance(name, str) and is_view(name.lower())):
            raise InputError(f"{name!r} is the name of no view; call arrays lcc, lmlo, rcc or rmlo.")
    try:
        return {name.lower(): np.asarray(array) for name, array in images.items()}
    except (TypeError, ValueError) as error:  # lists of unequal lengths, tensors on a GPU
        raise InputError(f"What was given cannot be made a numpy array ({error}); give arrays.") from error


def _check_array(name: str, array: NDArray[Any]) -> None:
    what = f"The array {name}"
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise InputError(f"{what} must be (slices, rows, columns) or (rows, columns), not of shape {array.shape}.")
    if array.dtype.kind not in "iuf":
        raise InputError(f"{what} has values of the type {array.dtype}; give grey values as numbers.")
    if array.dtype.kind == "f" and not all(np.isfinite(slice_).all() for slice_ in np.atleast_3d(array)):
        raise InputError(f"{what} has values that are NaN or infinite; replace them, such as by the value of air.")


def _check_spacing(spacing: Spacing | None, arrays: Mapping[str, NDArray[Any]]) -> tuple[float | None, float, float]:
    """From slice to slice (None: not given), row to row and column to column."""
    if spacing is None:
        raise InputError(f"Arrays need their spacing: {SPACINGS}.")
    given = np.asarray(spacing, dtype=object).ravel().tolist()
    flat = all(array.ndim == 2 or len(array) == 1 for array in arrays.values())
    numbers = [float(value) for value in given if isinstance(value, int | float | np.number)]
    if len(numbers) != len(given) or len(given) not in ((2, 3) if flat else (3,)):
        count = "two or three numbers" if flat else "three numbers"
        raise InputError(f"The spacing {spacing!r} does not fit these arrays; give {count}: {SPACINGS}.")
    if not all(0 < number < 10 for number in numbers):
        raise InputError(f"The spacing {spacing!r} has a number that is not between 0 and 10 mm.")
    *slices, row, column = numbers
    return slices[0] if slices else None, row, column
