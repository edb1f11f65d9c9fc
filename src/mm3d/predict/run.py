"""`mm3d predict`: DICOM exams or a prepared folder and weights in, findings out.

OUT has the results of one exam, or of several a folder each (see `exam`), and beside those:

    predictions.json, predictions.csv    of all exams in OUT
    run.json                             the method, the exams, what went wrong
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mm3d.data.inputs import InputName, modality_of
from mm3d.data.prepare.settings import PrepareSettings
from mm3d.model import weights
from mm3d.model.config import EngineName
from mm3d.output.predictions import read_json
from mm3d.predict import operating_point
from mm3d.predict.archive import Archive, Exam, hide, read_archive
from mm3d.predict.detect import PredictSettings, load_model
from mm3d.predict.exam import RECORD, VERSION, Method, predict_exam, write_failure, write_predictions
from mm3d.predict.output import clear_results, is_finished, open_folder, place, read_record
from mm3d.predict.prepared import predict_prepared
from mm3d.predict.results import Found
from mm3d.shared.config import from_dict
from mm3d.shared.console import say, show_progress
from mm3d.shared.errors import InputError, describe_bug
from mm3d.shared.files import partial_path, remove_partial, replacing
from mm3d.shared.workers import worker_count


@dataclass(frozen=True)
class Options:
    """What the user chose; None where that is left to the weights."""

    settings: PredictSettings
    weights: Path | None = None
    input: InputName | None = None
    chunk: int | None = None
    engine: EngineName = "torch"
    # Of prepared folders:
    split: str | None = None
    # Of exams:
    threshold: float | None = None
    operating_point: str | None = None
    identifiers: bool = False
    preparation: dict[str, Any] | None = None  # what is to differ from the weights' own
    jobs: int | None = None


def run(given: Sequence[Path], output: Path, options: Options, began: float) -> int:
    """Predict what was given. `began`: the time, by `time.perf_counter`, at which the command began. Returns the exit
    code."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a folder with -o.")
    prepared = [path for path in given if (path / "cohort.json").is_file()]
    if not prepared:
        for path in given:  # not asked of the demo, which keeps its exam beside the results
            if output.resolve() in (path.resolve(), *path.resolve().parents):
                raise InputError(f"{path} is in {output}, and results are kept apart; give another folder with -o.")
        return predict_exams(given, output, options, began)
    if len(given) > 1:
        raise InputError(f"{prepared[0]} is a prepared folder; give it alone, or only DICOM files and folders.")
    if options != replace(options, threshold=None, operating_point=None, identifiers=False, preparation=None):
        raise InputError(
            f"{prepared[0]} is a prepared folder, of which only predictions are written; operating points, identifiers "
            "and sizes are for DICOM exams."
        )
    return predict_prepared(
        prepared[0],
        output,
        options.weights,
        options.input,
        options.split,
        options.settings,
        options.chunk,
        options.engine,
    )


def predict_exams(given: Sequence[Path], output: Path, options: Options, began: float) -> int:
    """Predict every exam that is found in files and folders of DICOM and is not finished in `output`."""
    if options.split is not None:
        raise InputError("--split is for prepared folders; DICOM exams have none.")
    for path in given:
        if path.is_dir() and path.resolve() in (output.resolve(), *output.resolve().parents):
            raise InputError(f"{output} is inside {path}, which is read; give another folder with -o.")
    console = Console()
    with console.status("looking for exams"):
        method = make_method(options)
        archive = read_archive(given, modality_of(method.input), options.identifiers)
    if not archive.exams:
        why = f" ({archive.problems[0].reason})" if archive.problems else ""
        raise InputError(f"{given[0]} has no mammography that can be read{why}; give DICOM exams.")
    output.mkdir(parents=True, exist_ok=True)
    remove_partial(output)
    alone = open_folder(output, archive.exams, method)
    exams = [_with_remark(exam, method) for exam in archive.exams]
    if alone:  # a file that says nothing of itself may well be of this exam
        problems = (*exams[0].problems, *archive.problems)
        exams = [replace(exams[0], problems=problems, others=archive.others)]
    archive = Archive(tuple(exams), () if alone else archive.problems, archive.others)
    started = time.perf_counter() - began
    return Run(output, alone, archive, method, console).run(started)


def make_method(options: Options) -> Method:
    """Weights loaded, and every setting that was not given as the weights have it."""
    path = weights.find(options.weights)
    header = weights.read_header(path)
    chosen: InputName = options.input or header.provenance.get("input", "volume")
    if chosen == "msp":
        raise InputError("Input msp is for prepared folders; run 'mm3d prepare folder' first, and predict its folder.")
    return Method(
        model=load_model(path, options.chunk, options.engine),
        engine=options.engine,
        weights=weights.name_of(path),
        weights_hash=hashlib.sha256(path.read_bytes()).hexdigest(),
        intended_use=header.intended_use,
        input=chosen,
        histogram=tuple(header.provenance.get("histogram", ())) or None,
        prepare=_preparation(path, header, options.preparation or {}),
        predict=options.settings,
        point=operating_point.choose(options.threshold, options.operating_point, header),
        identifiers=options.identifiers,
        jobs=worker_count(options.jobs),
    )


def _preparation(path: Path, header: weights.WeightsHeader, given: dict[str, Any]) -> PrepareSettings:
    own = header.provenance.get("prepare", {})
    missing = [name for name in ("width", "length", "slices") if name not in own | given]
    if missing:
        wanted = ", ".join(f"--{name}" for name in missing)
        raise InputError(f"{path} does not say to which size its views were prepared; give {wanted}.")
    return from_dict(PrepareSettings, own | given, f"{path}: prepare")


def _with_remark(exam: Exam, method: Method) -> Exam:
    remark = method.point.remark(exam.modalities)
    return exam if remark is None else replace(exam, notes=(*exam.notes, remark))


class Run:
    """The exams of a command, one after the other."""

    def __init__(self, output: Path, alone: bool, archive: Archive, method: Method, console: Console) -> None:
        self.output, self.alone, self.archive, self.method = output, alone, archive, method
        self.console = console
        self.failures: dict[str, str] = {}
        self.problems = 0
        self.skipped = 0

    def run(self, started: float) -> int:
        """Predict all, exam by exam, and write what is of all. Returns the exit code."""
        say(self.console, f"Weights {self.method.weights}: {self.method.intended_use}")
        remarks = {self.method.point.remark(exam.modalities) for exam in self.archive.exams} - {None}
        for remark in remarks:  # at most one: a point was chosen on one kind of image
            say(self.console, f"note: {remark}")
        if not self.alone:
            self._write_summary()
        for problem in self.archive.problems:
            say(self.console, f"problem: {problem.reason}")
        with show_progress(self.console, "predicting", len(self.archive.exams)) as advance:
            for exam in self.archive.exams:
                self._one(exam, started)
                advance()
        if not self.alone:
            self._write_summary()
        self._close()
        return 1 if self.failures or self.problems or self.archive.problems else 0

    def _one(self, exam: Exam, started: float) -> None:
        folder = self.output if self.alone else self.output / exam.code
        partial = partial_path(self.output / exam.code)
        try:
            if is_finished(folder, exam):
                self.skipped += 1
                return
            clear_results(folder)
            found = predict_exam(exam, self.method, partial, started)
            place(partial, folder)
        except Exception as error:  # whatever an exam does, the others are predicted
            self._fail(exam, hide(_reason(error), exam.files, self.method.identifiers))
        else:
            self._tell(exam, found)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _fail(self, exam: Exam, reason: str) -> None:
        reasons = [*(problem.reason for problem in exam.problems), reason]
        for text in reasons:
            say(self.console, f"problem: exam {exam.code}: {text}")
        self.failures[exam.code] = " ".join(reasons)
        if self.alone:  # of several exams, the run's own record tells it
            write_failure(exam, self.method, self.failures[exam.code], self.output)

    def _tell(self, exam: Exam, found: Found) -> None:
        marked = found.marked()
        counted = "1 finding" if len(marked) == 1 else f"{len(marked)} findings"
        best = ""
        if marked:
            view, finding = marked[0]
            where = "" if finding.slice is None else f", slice {round(finding.slice) + 1}"
            best = f", the highest {finding.score:.2f} in {view.view.upper()}{where}"
        say(self.console, f"exam {exam.code}: score {found.score:.2f}, {counted} marked{best}.")
        for problem in found.problems:
            say(self.console, f"problem: exam {exam.code}: {problem.reason}")
        self.problems += len(found.problems)

    def _close(self) -> None:
        count, failed = len(self.archive.exams), len(self.failures)
        done, point = count - self.skipped - failed, self.method.point
        others = f" Files that are no mammography: {self.archive.others}." if self.archive.others else ""
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
                f"Wrote {self.output}: {_exams(done)}{before}{missing}. Marked is what scores at least "
                f"{point.threshold:g} ({point.source}).{others}",
            )

    def _write_summary(self) -> None:
        """What is of all exams in the folder, those of earlier runs among them."""
        folders = sorted(path.parent for path in self.output.glob(f"[!.]*/{RECORD}"))
        records = [record for folder in folders if (record := read_record(folder)) is not None]
        breasts = [breast for folder in folders for breast in read_json(folder / "predictions.json").breasts]
        write_predictions(breasts, self.method, self.output)
        content = {
            "version": VERSION,
            "method": self.method.told(),
            "exams": [
                {name: record[name] for name in ("exam", "score", "marked", "seconds", "problems")}
                for record in records
            ],
            "failures": self.failures,
            "problems": [problem.reason for problem in self.archive.problems],
            "others": self.archive.others,
        }
        with replacing(self.output / RECORD) as partial:
            partial.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _exams(count: int) -> str:
    return "1 exam" if count == 1 else f"{count} exams"


def _reason(error: Exception) -> str:
    """A sentence."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read or written ({error.strerror}); see to it, and try again."
    return f"{describe_bug(error)}; leave it out, and report this."
