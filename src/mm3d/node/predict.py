"""Predict a received exam with the code of `mm3d predict`, and write what is sent back."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mm3d.data.inputs import modality_of
from mm3d.data.prepare.run import start_workers
from mm3d.node.config import PredictionSettings, ResultName
from mm3d.output.presentation_state import write_presentation_states
from mm3d.output.result import ExamResult
from mm3d.output.summary_image import write_summary_image
from mm3d.output.writers import write_results
from mm3d.predict.exam import Setup, find_exams, predict_exam, read_archive
from mm3d.predict.run import Options, make_setup, remarks
from mm3d.predict.settings import PredictSettings
from mm3d.shared.errors import InputError
from mm3d.shared.files import sync, working_folder

if TYPE_CHECKING:
    from mm3d.model.detector import Detector


# Where the results of each name are, in the folder of an exam's results.
FILES: dict[ResultName, str] = {
    "measurements": "sr/measurements.dcm",
    "cad": "sr/cad.dcm",
    "boxes": "boxes/*.dcm",
    "summary": "summary.dcm",
}


class NoMammographyError(InputError):
    """The exam has no image that mm3d looks at, and nothing is wrong with it."""


@dataclass
class Predictor:
    """Predicts exams. Weights are loaded once, when the first exam needs them."""

    settings: PredictionSettings
    models: "dict[str, tuple[Setup, Future[Detector]]]"

    @property
    def options(self) -> Options:
        return Options(PredictSettings(), **vars(self.settings))  # they have the same names there

    def check(self) -> None:
        """Refuse wrong settings and weights before anything is received."""
        make_setup(self.options, synthetic=False)

    def predict(self, images: Path, results: Path, replaced: Path | None, send: Sequence[ResultName]) -> ExamResult:
        """Predict the exam in a folder and write its results: all of them or none.

        `replaced` is the folder of the results that these replace. The seconds of each part are in the result.
        """
        found = read_archive([images])
        setup, model = self._load(found.synthetic)
        archive = find_exams(found, modality_of(setup.input), identifiers=False)
        if not archive.exams and not archive.problems:
            raise NoMammographyError("It has no mammography.")
        if len(archive.exams) != 1:
            raise InputError(" ".join(problem.reason for problem in archive.problems) or "It is not one exam.")
        exam = archive.exams[0]
        exam = replace(exam, problems=(*exam.problems, *archive.problems), other_files=archive.other_files)
        exam = replace(exam, notes=(*exam.notes, *remarks(exam, setup)))
        with working_folder(results.parent) as work:
            result = predict_exam(exam, setup, model, work / "images", 0.0)
            if replaced is not None:
                result = replace(result, replaces=tuple(sorted(replaced.glob("sr/*.dcm"))))
            began = time.perf_counter()
            write_results(result, work / "results")
            if "boxes" in send:
                write_presentation_states(result, work / "results" / "boxes")
            if "summary" in send:
                write_summary_image(result, work / "results" / "summary.dcm")
            (work / "results").rename(results)
            sync(results.parent)
        return replace(result, seconds={**result.seconds, "outputs": time.perf_counter() - began})

    def _load(self, synthetic: bool) -> "tuple[Setup, Future[Detector]]":
        setup = make_setup(self.options, synthetic)
        if setup.method.weights_hash not in self.models:
            start_workers()  # before torch: while it is imported, this thread hardly runs
            loader = ThreadPoolExecutor(max_workers=1)
            self.models[setup.method.weights_hash] = setup, loader.submit(setup.load_model)
            loader.shutdown(wait=False)
        return setup, self.models[setup.method.weights_hash][1]
