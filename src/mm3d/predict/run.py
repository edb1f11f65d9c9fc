"""`mm3d predict`: find exams, read their images, detect, and write the results.

OUT has the results of one exam, or a folder with those of each exam (`output/writers.py` lists the files) and:

    predictions.json, predictions.csv    of all exams in OUT
    run.json                             the method, the exams, and what went wrong

`folder.py` says what may be written there.
"""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mm3d import __version__
from mm3d.data.inputs import Histogram, InputName, modality_of, prepared_breasts
from mm3d.data.prepare.geometry import PrepareSettings
from mm3d.data.prepare.prepared import SYNTHETIC, read_notes
from mm3d.data.prepare.run import start_workers
from mm3d.data.prepare.view import MAX_PIXELS
from mm3d.data.records import Cohort
from mm3d.model import weights
from mm3d.model.config import DeviceName, EngineName, PrecisionName
from mm3d.output.predictions import Predictions, write_dbtex, write_json
from mm3d.output.record import RECORD, read_record, write_record
from mm3d.output.result import Calibration, ExamResult, Method, OperatingPoint, PriorExam
from mm3d.predict.exam import (
    Archive,
    Exam,
    FoundFiles,
    Setup,
    find_exams,
    find_prior,
    hide_paths,
    predict_exam,
    read_archive,
)
from mm3d.predict.folder import (
    check_lists,
    check_prediction_files,
    has_results,
    is_finished,
    keep_results,
    open_folder,
    read_results,
    write_failure,
)
from mm3d.predict.pictures import PictureOptions, find_picture_exams, has_pictures, read_pictures
from mm3d.predict.settings import PredictSettings
from mm3d.shared.config import from_dict, parse_json, show, to_dict
from mm3d.shared.console import Console, say, show_progress
from mm3d.shared.errors import InputError, describe_error
from mm3d.shared.files import lock_folder, remove_partial, working_folder
from mm3d.shared.workers import worker_count

if TYPE_CHECKING:
    from mm3d.model.detector import Detector

DEFAULT = 0.5  # the threshold if nobody gives one: no choice was made, and every output says so


@dataclass(frozen=True)
class Options:
    """What the user chose. None: the weights decide."""

    settings: PredictSettings
    weights: Path | None = None
    input: InputName | None = None
    chunk: int | None = None
    engine: EngineName | None = None
    precision: PrecisionName = "auto"
    device: DeviceName = "auto"
    # For prepared folders:
    split: str | None = None
    # For exams:
    threshold: float | None = None
    operating_point: str | None = None
    identifiers: bool = False
    preparation: dict[str, Any] | None = None  # what differs from the preparation of the weights
    jobs: int | None = None
    max_pixels: int = MAX_PIXELS  # of all slices of a view
    pictures: PictureOptions = field(default_factory=PictureOptions)


def run(given: Sequence[Path], output: Path, options: Options, began: float) -> int:
    """Predict DICOM exams or a prepared folder. Returns the exit code.

    `began` is the time, by `time.perf_counter`, at which the command began.
    """
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    prepared = [path for path in given if _is_prepared(path)]
    if not prepared:
        for path in given:  # not checked for the demo, which keeps its exam beside the results
            if output.resolve() in (path.resolve(), *path.resolve().parents):
                raise InputError(f"{path} is in {output}, and results are kept apart; give another folder with -o.")
        return predict_exams(given, output, options, began)
    if len(given) > 1:
        raise InputError(f"{prepared[0]} is a prepared folder; give it alone, or only DICOM files and folders.")
    if options != replace(
        options, threshold=None, operating_point=None, identifiers=False, preparation=None, pictures=PictureOptions()
    ):
        raise InputError(
            f"{prepared[0]} is a prepared folder, of which only predictions are written; operating points, "
            "identifiers, sizes and tables are for exams."
        )
    return predict_prepared(prepared[0], output, options)


def _is_prepared(folder: Path) -> bool:
    try:
        return (folder / "cohort.json").is_file()
    except OSError:  # without permission; that is said where exams are looked for
        return False


def predict_prepared(folder: Path, output: Path, options: Options) -> int:
    """Predict every breast of a prepared folder. Returns the exit code."""
    from mm3d.predict.detect import load_model, predict_breast, project

    path, notes = choose_weights(options.weights, SYNTHETIC in read_notes(folder))
    header = weights.read_header(path)
    chosen, histogram = choose_input(options, header)
    breasts = prepared_breasts(folder, options.split, modality_of(chosen))
    check_prediction_files(output)
    remove_partial(output)
    engine, _ = choose_engine(options, header)
    model = load_model(path, options.chunk, engine, options.precision, options.device)
    console = Console()
    say(console, f"Weights {weights.name_of(path)}: {header.intended_use}")
    for note in (*notes, *note_other_size(breasts[0].views[0].file.settings, header)):
        say(console, f"note: {note}")
    if chosen == "msp":
        slices = weights.find(str(header.provenance.get("suspicion", path)))
        with show_progress(console, "projecting", len(breasts)) as advance:
            breasts = project(breasts, slices, output / "projections", advance)
    predicted = []
    with show_progress(console, "predicting", len(breasts)) as advance:
        for breast in breasts:
            predicted.append(predict_breast(model, breast, chosen, histogram, options.settings))
            advance()
    about = {"name": "mm3d", "version": __version__, "weights": str(path), "input": chosen, "use": header.intended_use}
    predictions = Predictions(tuple(predicted), about)
    write_json(predictions, output / "predictions.json")
    write_dbtex(predictions, output / "predictions.csv")
    say(console, f"Wrote {output}: predictions.json, predictions.csv ({len(breasts)} breasts, input {chosen}).")
    return 0


def note_other_size(ours: PrepareSettings, header: weights.WeightsHeader) -> list[str]:
    """A note if views are prepared to another size than the weights were trained on, which costs recall."""
    theirs = header.provenance.get("prepare")
    if not isinstance(theirs, dict) or not {"width", "length"} <= theirs.keys():
        return []
    width, length = theirs["width"], theirs["length"]
    if (width, length) == (ours.width, ours.length):
        return []
    return [
        f"The views are prepared to {ours.length} x {ours.width}, and the weights know {show(length)} x {show(width)}; "
        f"prepare them with --width {show(width)} --length {show(length)} to find more."
    ]


def predict_exams(given: Sequence[Path], output: Path, options: Options, began: float) -> int:
    """Predict every exam in files and folders of DICOM that is not finished in `output`. Returns the exit code."""
    if options.split is not None:
        raise InputError("--split is for prepared folders; DICOM exams have none.")
    for path in given:
        if path.is_dir() and path.resolve() in (output.resolve(), *output.resolve().parents):
            raise InputError(f"{output} is inside {path}, which is read; give another folder with -o.")
    console = Console()
    with console.status("looking for exams"):
        setup, archive = _find_exams(given, options)
    refuse_empty(archive, given)
    output.mkdir(parents=True, exist_ok=True)
    remove_partial(output)
    single = open_folder(output, archive.exams, setup.method)
    if single:
        archive = Archive((only_exam(archive),), (), archive.other_files)
    return Run(output, single, archive, setup, console).run(time.perf_counter() - began)


def _find_exams(given: Sequence[Path], options: Options) -> tuple[Setup, Archive]:
    """The exams in what a user gives, and how they are predicted."""
    found = read_given(given, options.pictures)
    setup = make_setup(options, isinstance(found, FoundFiles) and found.synthetic)
    return setup, sort_exams(found, setup)


def read_given(given: Sequence[Path], pictures: PictureOptions) -> FoundFiles | Cohort:
    """What a user gives: DICOM files, or pictures and arrays with what tables say of them. Pictures and arrays count
    only where there is no DICOM, because exports have pictures beside it."""
    found = None if pictures != PictureOptions() else read_archive(given)
    if found is None or (not found.images and not found.broken and has_pictures(given)):
        return read_pictures(given, pictures)
    return found


def sort_exams(found: FoundFiles | Cohort, setup: Setup) -> Archive:
    """The exams in what was found."""
    prefer = modality_of(setup.input)
    if isinstance(found, FoundFiles):
        return find_exams(found, prefer, setup.method.identifiers)
    return find_picture_exams(found, prefer)


def only_exam(archive: Archive) -> Exam:
    """The exam of an archive that has one. A file that does not say of which exam it is may well be of this one."""
    (exam,) = archive.exams
    return replace(exam, problems=(*exam.problems, *archive.problems), other_files=archive.other_files)


def refuse_empty(archive: Archive, given: Sequence[Path]) -> None:
    """Refuse what has no exam."""
    if not archive.exams:
        why = f" ({archive.problems[0].reason})" if archive.problems else ""
        raise InputError(
            f"{given[0]} has no mammography that can be read{why}; give DICOM exams, or pictures with a table."
        )


def choose_input(options: Options, header: weights.WeightsHeader) -> tuple[InputName, Histogram | None]:
    """What the model is given of each view, and the histogram that input hm is matched to."""
    chosen: InputName = options.input or header.provenance.get("input", "volume")
    if chosen not in get_args(InputName):
        raise InputError(
            f"The weights were trained on the input {show(chosen)}, which is not known; update mm3d, or give --input."
        )
    histogram = header.provenance.get("histogram", [])
    if not isinstance(histogram, list) or not all(isinstance(x, float) and 0 <= x <= 1 for x in histogram):
        raise InputError("The histogram in the weights is damaged; download or write them again.")
    return chosen, tuple(histogram) or None


def choose_engine(options: Options, header: weights.WeightsHeader) -> tuple[EngineName, str]:
    """What runs the backbone, and what it computes in."""
    if header.int8 is None:
        return options.engine or "torch", "bfloat16" if options.precision == "bfloat16" else "float32"
    if options.precision != "auto":
        raise InputError("The weights are int8, and measured with float32 around it; leave out --precision.")
    return options.engine or "openvino", header.precision


def choose_weights(given: Path | None, synthetic: bool) -> tuple[Path, tuple[str, ...]]:
    """The weights that are given, or those of ours for such breasts; then with a sentence that says so."""
    path = weights.find(given, synthetic)
    if given is not None:
        return path, ()
    breasts = "all images are of a virtual trial" if synthetic else "the images are not all of a virtual trial"
    return path, (f"No weights were given; {weights.name_of(path)} are used, because {breasts}.",)


def make_setup(options: Options, synthetic: bool) -> Setup:
    """Settle every setting for DICOM exams. Of the weights, only the header is read."""
    path, notes = choose_weights(options.weights, synthetic)
    header = weights.read_header(path)
    chosen, histogram = choose_input(options, header)
    if chosen == "msp":
        raise InputError("Input msp is for prepared folders; run 'mm3d prepare folder' first, and predict its folder.")
    prepare = _choose_preparation(path, header, options.preparation or {})
    point = choose_operating_point(options.threshold, options.operating_point, header)
    engine, precision = choose_engine(options, header)
    method = Method(
        weights=weights.name_of(path),
        intended_use=header.intended_use,
        operating_point=point,
        weights_hash=_hash_file(path),
        input=chosen,
        engine=engine,
        precision=precision,
        prepare=to_dict(prepare),
        predict=to_dict(options.settings),
        identifiers=options.identifiers,
        calibration=read_calibration(header),
    )
    jobs = worker_count(options.jobs)
    load = partial(_load_model, path, options.chunk, engine, options.precision, options.device)
    return Setup(load, chosen, histogram, options.settings, prepare, jobs, method, options.max_pixels, notes)


def _load_model(*arguments: Any) -> "Detector":
    from mm3d.predict.detect import load_model

    return load_model(*arguments)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _choose_preparation(path: Path, header: weights.WeightsHeader, given: dict[str, Any]) -> PrepareSettings:
    own = header.provenance.get("prepare", {})
    if not isinstance(own, dict):
        raise InputError(f"{path}: prepare must be a table of settings, not {show(own)}.")
    missing = [f"--{name}" for name in ("width", "length", "slices") if name not in own | given]
    if missing:
        raise InputError(f"{path} does not say to which size its views were prepared; give {', '.join(missing)}.")
    return from_dict(PrepareSettings, own | given, f"{path}: prepare")


def choose_operating_point(threshold: float | None, file: str | None, header: weights.WeightsHeader) -> OperatingPoint:
    """The threshold that was given, or one of an evaluation, or that of the weights, or the default."""
    if threshold is not None:
        return OperatingPoint(threshold, "given with --threshold")
    if file is not None:
        return _read_evaluation(file)
    own = header.provenance.get("operating_point")
    if own is None:
        return OperatingPoint(DEFAULT, "a default: neither the command nor the weights have an operating point")
    own = own if isinstance(own, dict) else {"threshold": own}
    trained_on = header.provenance.get("input")  # a point in the weights is for what they were trained on
    modality = None if trained_on is None else modality_of(trained_on)
    threshold = _check_threshold(own.get("threshold"), "the weights")
    breast = own.get("breast")
    breast = None if breast is None else _check_threshold(breast, "the weights for breasts")
    return OperatingPoint(threshold, str(own.get("source", "of the weights")), modality, breast)


def read_calibration(header: weights.WeightsHeader) -> Calibration | None:
    """The calibration in the weights, if there is one."""
    own = header.provenance.get("calibration")
    return None if own is None else from_dict(Calibration, own, "the calibration in the weights")


def _read_evaluation(text: str) -> OperatingPoint:
    """FILE or FILE:NAME: a metrics.json of `mm3d evaluate` and one of its operating points of findings, such as
    2D@0.25. Without a name, the first is taken."""
    path, name = Path(text), ""
    if not path.exists() and ":" in text:
        before, _, name = text.rpartition(":")
        path = Path(before)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a metrics.json that 'mm3d evaluate' wrote.")
    try:
        systems = parse_json(path.read_text(encoding="utf-8"))["systems"]
        found = [point for system in systems for point in system["operating_points"] if point.get("of") == "findings"]
        points = {f"{point['rule']}@{point['wanted']['fp_per_volume']:g}": point for point in found}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no metrics.json of 'mm3d evaluate'; give one.") from error
    if len(systems) != 1:
        raise InputError(f"{path} compares {len(systems)} systems; evaluate the predictions of these weights alone.")
    if not points:
        raise InputError(f"{path} has no operating point of findings; evaluate predictions that have some.")
    if name and name not in points:
        raise InputError(f"{path} has no operating point {name!r}; it has {', '.join(points)}.")
    chosen = name or next(iter(points))
    threshold = _check_threshold(points[chosen].get("threshold"), f"{path}, {chosen},")
    breasts = [point for point in systems[0]["operating_points"] if point.get("of") == "breasts"][:1]
    breast = next((_check_threshold(point.get("threshold"), f"breasts in {path}") for point in breasts), None)
    return OperatingPoint(threshold, f"{chosen} false positives per volume", systems[0].get("modality"), breast)


def _check_threshold(threshold: Any, owner: str) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise InputError(
            f"The operating point of {owner} is {show(threshold)}, no score from 0 to 1; give a --threshold."
        )
    return float(threshold)


def remarks(exam: Exam, setup: Setup) -> list[str]:
    """Which weights were chosen if none were given, and if the operating point is of images of another kind."""
    modalities = {view.modality for breast in exam.breasts for view in breast.views}
    return [*setup.notes, *filter(None, [setup.method.operating_point.remark(modalities)])]


class Run:
    """The exams of a command, one after the other."""

    def __init__(self, output: Path, single: bool, archive: Archive, setup: Setup, console: Console) -> None:
        self.output, self.single, self.archive, self.setup, self.console = output, single, archive, setup, console
        self.failures: dict[str, str] = {}  # by the code of the exam
        self.problems = len(archive.problems)
        self.skipped = 0

    def run(self, start_seconds: float) -> int:
        """Predict all exams and write the lists of all. Returns the exit code."""
        method = self.setup.method
        say(self.console, f"Weights {method.weights}: {method.intended_use}")
        for remark in sorted({remark for exam in self.archive.exams for remark in remarks(exam, self.setup)}):
            say(self.console, f"note: {remark}")
        if not self.single:
            self.model.result()  # if the weights are wrong, nothing may stay behind that says they were used
            self._write_lists()
        for problem in self.archive.problems:
            say(self.console, f"problem: {problem.reason}")
        with show_progress(self.console, "predicting", len(self.archive.exams)) as advance:
            # An exam comes after the prior exam that its report shows.
            for exam in sorted(self.archive.exams, key=lambda exam: exam.date or date.min):
                self._predict(replace(exam, notes=(*exam.notes, *remarks(exam, self.setup))), start_seconds)
                advance()
        self._write_lists(last=True)
        self._say_end()
        return 1 if self.failures or self.problems else 0

    @cached_property
    def model(self) -> "Future[Detector]":
        """The model. It is loaded in a thread of its own, while worker processes read the first exam."""
        start_workers()  # before torch: while it is imported, this thread hardly runs
        loader = ThreadPoolExecutor(max_workers=1)
        model = loader.submit(self.setup.load_model)
        loader.shutdown(wait=False)
        return model

    def _predict(self, exam: Exam, start_seconds: float) -> None:
        """Predict one exam. Whatever goes wrong with it, the others are predicted."""
        method = self.setup.method
        folder = self.output if self.single else self.output / exam.code
        try:
            if is_finished(folder, exam):
                self.skipped += 1
                return
            remove_partial(folder)
            with working_folder(self.output) as work:
                result = predict_exam(exam, self.setup, self.model, work / "images", start_seconds)
                result = self._add_prior(exam, result)
                if not keep_results(result, exam, work, folder, method):
                    self.skipped += 1
                    return
        except Exception as error:
            self.model.result()  # if the weights are wrong, it is not the exam's fault, and the run ends
            paths = [*exam.files, *(path for problem in exam.problems for path in problem.files)]
            self._fail(exam, folder, hide_paths(describe_error(error), paths, method.identifiers))
        else:
            self._say_result(exam, result)

    def _add_prior(self, exam: Exam, result: ExamResult) -> ExamResult:
        """The result with the patient's prior exam, if it is one of this run and has results."""
        found = find_prior(exam, self.archive.exams)
        folder = self.output / (found[0].code if found else "")
        if found is None or not has_results(folder):
            return result
        record = read_record(folder) or {}
        prior = PriorExam(folder / "report.html", found[1], float(record["score"]))
        note = f"The report shows exam {found[0].code} of the same patient, {found[1]}; the model was not given it."
        return replace(result, prior=prior, notes=(*result.notes, note))

    def _fail(self, exam: Exam, folder: Path, reason: str) -> None:
        reasons = [*(problem.reason for problem in exam.problems), reason]
        if has_results(folder):
            reasons.append("The results of its earlier prediction are kept.")
        for text in reasons:
            say(self.console, f"problem: exam {exam.code}: {text}")
        self.failures[exam.code] = " ".join(reasons)
        if self.single or has_results(folder):  # otherwise the failure is only in the record of all exams
            with suppress(InputError, OSError), lock_folder(self.output, wait=True):
                write_failure(folder, exam, self.setup.method, self.failures[exam.code])

    def _say_result(self, exam: Exam, result: ExamResult) -> None:
        say(self.console, f"exam {exam.code}: {result.describe()}.")
        for problem in result.problems:
            say(self.console, f"problem: exam {exam.code}: {problem.reason}")
        for warning in result.warnings:
            say(self.console, f"warning: exam {exam.code}: {warning}")
        self.problems += len(result.problems)

    def _say_end(self) -> None:
        count, failed, point = len(self.archive.exams), len(self.failures), self.setup.method.operating_point
        done = count - self.skipped - failed
        others = f" Files that are no mammography: {self.archive.other_files}." if self.archive.other_files else ""
        before = f", {self.skipped} finished before" if self.skipped else ""
        if self.skipped == count:
            which = "its exam" if count == 1 else f"all {count} exams"
            say(self.console, f"Nothing to do: {self.output} has the results of {which} already.{others}")
        elif not done:
            say(self.console, f"Nothing predicted: {failed} failed{before}; {self.output / RECORD} says why.{others}")
        else:
            missing = f", {failed} could not be predicted" if failed else ""
            say(
                self.console,
                f"Wrote {self.output}: {_count(done, 'exam')}{before}{missing}. Marked is what scores at least "
                f"{point.threshold:.3g} ({point.source}).{others}",
            )

    def _write_lists(self, last: bool = False) -> None:
        """Write what is about all exams in the folder, also those of other runs; not if it is of a single exam."""
        if self.single:
            return
        method = self.setup.method
        with lock_folder(self.output, wait=True):
            check_lists(self.output, method)
            results = read_results(self.output, method)
            predictions = method.predictions(results.breasts)
            write_record(
                self.output,
                method=method.settings(),
                exams=list(results.records),
                failures=self.failures,
                notes=list(results.notes),
                problems=[*(problem.reason for problem in self.archive.problems), *results.problems],
                others=self.archive.other_files,
            )
            write_json(predictions, self.output / "predictions.json")
            write_dbtex(predictions, self.output / "predictions.csv")
        if last:
            self.problems += len(results.problems)
            for kind, sentences in (("problem", results.problems), ("note", results.notes)):
                for sentence in sentences:
                    say(self.console, f"{kind}: {sentence}")


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
