"""What is kept of a run gives the figures that its predictions gave, and tests that can be believed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture
from support.blobs import write_blobs

from mm3d.data.inputs import prepared_breasts
from mm3d.data.prepare.geometry import Geometry, PrepareSettings
from mm3d.data.records import Annotation, Key
from mm3d.evaluate import match
from mm3d.evaluate.match import EvaluateSettings
from mm3d.evaluate.metrics import bootstrap
from mm3d.evaluate.metrics.froc import recall_at
from mm3d.evaluate.metrics.roc import delong
from mm3d.evaluate.truth import Truth, TruthBreast, TruthView
from mm3d.experiments.cohorts import pool_folder, pool_slices
from mm3d.experiments.gallery import Look, draw_row, draw_w, largest_gain, mean_weights
from mm3d.experiments.pictures import RING, write_pictures
from mm3d.experiments.report import duration
from mm3d.experiments.results import (
    JudgedAnnotations,
    JudgedCohort,
    Result,
    Scores,
    compact,
    froc_scores,
    judged_cohort,
    read_cohort,
    read_result,
    write_cohort,
    write_result,
)
from mm3d.experiments.spec import CohortSpec, RunSpec, StudySpec
from mm3d.experiments.statistics import Difference, Statistics, together, verdict
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction
from mm3d.shared.console import Console
from mm3d.shared.errors import InputError


def made_up_truth(breasts: int = 120) -> Truth:
    """Every third breast malignant, with a finding in both views; two breasts to a patient."""
    made = []
    for number in range(breasts):
        malignant = number % 3 == 0
        patient, exam = f"P{number // 2:03d}", f"E{number // 2:03d}"
        side = "LR"[number % 2]
        mark = (Annotation((10, 10, 30, 30), True, 5, 3, 7, "mass" if number % 2 else "calcification"),)
        views = tuple(
            TruthView(Key(patient, exam, f"{side}{position}".lower(), "DBT"), mark * malignant, 10)
            for position in ("CC", "MLO")
        )
        label = "malignant" if malignant else "negative"
        made.append(TruthBreast((patient, exam, side), label, "", {"density": "AB"[number % 2]}, views))  # type: ignore[arg-type]
    return Truth("made up", tuple(made))


def made_up_predictions(truth: Truth, random: np.random.Generator) -> Predictions:
    """Three false positives in a view, and a hit in most with a finding, often on the wrong slice."""
    found = []
    for breast in truth.breasts:
        views = []
        for view in breast.views:
            proposals = [Finding((50, 50, 70, 70), float(random.beta(1, 5)), 2.0) for _ in range(3)]
            if view.annotations and random.random() < 0.8:
                proposals.append(Finding((10, 10, 30, 31), float(random.beta(3, 3)), float(random.integers(0, 10))))
            views.append(ViewPrediction(view.key.view, tuple(proposals), "DBT", float(random.random())))
        score = float(np.clip(random.normal(0.4 + 0.2 * (breast.label == "malignant"), 0.2), 0, 1))
        found.append(BreastPrediction(*breast.key, tuple(views), score))
    return Predictions(tuple(found))


def made_up_result(scores: Scores, run: str = "a", seed: int = 0) -> Result:
    plain: dict[str, Any] = {"study": "s", "recipe": {}, "configuration": None, "figures": {"auc": 0.5}}
    return Result(
        run=run,
        seed=seed,
        modality="DBT",
        seconds={"train": 60.0, "predict": 1.0},
        memory_mb=1.0,
        parameters=1,
        weights="w",
        commit="",
        mm3d="0",
        scores=scores,
        **plain,
    )


@pytest.mark.parametrize("rule", ["2D", "3D"])
def test_the_scores_that_are_kept_give_the_figures_of_all_predictions(rule: str, tmp_path: Path) -> None:
    """0.8 false positives per volume are enough for R@0.5, its replicates included."""
    truth, settings = made_up_truth(), EvaluateSettings()
    predictions = made_up_predictions(truth, np.random.default_rng(0))
    matched = match.match_predictions("made up", predictions, truth, settings)
    whole = match.froc_scores(matched, rule)
    path = write_result(made_up_result(compact(matched)), tmp_path)
    write_cohort(judged_cohort(truth, settings), tmp_path)
    kept = froc_scores(read_cohort(tmp_path), read_result(path), rule)
    assert len(kept.false) < len(whole.false)  # something was left out
    draws = bootstrap.draw(60, 200, 0)
    for rate in (0.25, 0.5):
        assert recall_at(kept, rate) == recall_at(whole, rate)
        rates = np.array([rate])
        assert np.array_equal(bootstrap.recalls_at(kept, rates, draws), bootstrap.recalls_at(whole, rates, draws))
    assert 0.2 < recall_at(whole, 0.25) < 0.9


def test_another_test_cohort_is_refused(tmp_path: Path) -> None:
    write_cohort(judged_cohort(made_up_truth(), EvaluateSettings()), tmp_path)
    write_cohort(judged_cohort(made_up_truth(), EvaluateSettings()), tmp_path)
    with pytest.raises(InputError, match="is of another test cohort"):
        write_cohort(judged_cohort(made_up_truth(100), EvaluateSettings()), tmp_path)


def test_a_result_of_2000_breasts_is_small_enough_to_commit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(random.integers(10_000, 999_999, count).tolist())

    counts = tuple(np.bincount(random.integers(0, 2000, 3200), minlength=2000).tolist())
    scores = Scores(some(2000), {"2D": some(400), "3D": some(400)}, some(3200), counts, some(200), some(200))
    configuration = {"settings": "x" * 4000}
    path = write_result(replace(made_up_result(scores), configuration=configuration), tmp_path)
    assert path.stat().st_size < 60_000


def test_replicates_of_the_auc_are_aucs_of_drawn_patients() -> None:
    random = np.random.default_rng(0)
    scores, positive = random.integers(0, 12, 40).astype(float), random.random(40) < 0.4
    owner = np.arange(40) // 2
    draws = bootstrap.draw(20, 50, 1)
    found = bootstrap.areas(scores, positive, owner, draws)
    for replicate, drawn in zip(found, draws, strict=True):
        times = drawn[owner]
        expected = delong(np.repeat(scores, times)[None], np.repeat(positive, times)).values[0]
        assert replicate == pytest.approx(expected)


def _study(runs: dict[str, tuple[int, ...]]) -> StudySpec:
    cohorts = {name: CohortSpec(breasts=1, slices=1, seed=seed) for seed, name in enumerate(("train", "test"))}
    lines = tuple(RunSpec(name, name, (), start="random", seeds=seeds) for name, seeds in runs.items())
    return StudySpec("s", "s", cohorts, {"finetune": {}}, lines)


def made_up_study(found: dict[str, list[NDArray[np.int64]]], patients: int = 200) -> Statistics:
    """Runs by the scores at which they find one finding of each patient, a list of seeds; one false positive at 500,000
    in each of three volumes of four: R@0.25 counts what scores more."""
    breasts = tuple(range(patients))
    annotations = JudgedAnnotations(breasts, ("mass",) * patients, (True,) * patients, breasts)
    labels = tuple("malignant" if number % 2 else "negative" for number in breasts)
    cohort = JudgedCohort(tuple(map(str, breasts)), breasts, labels, ("A",) * patients, {"DBT": annotations})
    counts = tuple(int(number % 4 > 0) for number in breasts)
    results = {}
    for name, seeds in found.items():
        for seed, scores in enumerate(seeds):
            own = tuple(scores.tolist())
            kept = Scores(own, {"2D": own, "3D": own}, (500_000,) * sum(counts), counts)
            results[f"{name}-seed{seed}"] = made_up_result(kept, name, seed)
    return Statistics(_study({name: tuple(range(len(seeds))) for name, seeds in found.items()}), cohort, results)


def found_by(share: float, patients: int = 200, seed: int = 0) -> NDArray[np.int64]:
    """Found above the false positives with a probability."""
    return np.where(np.random.default_rng(seed).random(patients) < share, 900_000, 100_000)


def test_the_paired_test_finds_a_difference_that_is_there_and_none_that_is_not() -> None:
    base = found_by(0.5)
    better = np.where(np.arange(200) % 5 == 0, 900_000, base)  # the same, and a tenth more
    statistics = made_up_study({"a": [better], "b": [base], "c": [found_by(0.5, seed=9)]})
    ahead = statistics.difference("a", "b", "recall@0.25")
    assert ahead is not None
    assert ahead.value == pytest.approx((better > base).mean())
    assert ahead.p == pytest.approx(2 / 10_001)  # no replicate of a paired draw is on the other side
    assert verdict(ahead) == "holds"
    assert verdict(statistics.difference("b", "a", "recall@0.25")) == "does not hold"
    same = statistics.difference("a", "a", "recall@0.25")
    assert same == Difference(0.0, 0.0, 1.0)
    other = statistics.difference("b", "c", "recall@0.25")
    assert other is not None
    assert other.p > 0.05
    assert verdict(other) == "undecided"
    # The error of a share p of n patients is sqrt(p (1 - p) / n).
    figure = statistics.figure("b", "recall@0.25")
    assert figure is not None
    assert figure.error == pytest.approx(np.sqrt(0.25 / 200), rel=0.1)


def test_the_spread_of_seeds_is_part_of_errors_and_p() -> None:
    """A difference that one lucky seed makes is no difference of methods."""
    wild = [found_by(0.75, seed=1), found_by(0.45, seed=2), found_by(0.6, seed=3)]
    lucky, other = wild[0], found_by(0.55, seed=5)
    alone = made_up_study({"a": [lucky], "b": [other]}).difference("a", "b", "recall@0.25")
    together_with = made_up_study({"a": [lucky], "b": [other], "wild": wild})
    spread, freedom = together_with.seed_spread("finetune", "recall@0.25")
    assert freedom == 2
    assert spread == pytest.approx(np.std([(scores > 500_000).mean() for scores in wild], ddof=1))
    honest = together_with.difference("a", "b", "recall@0.25")
    assert alone is not None
    assert honest is not None
    assert alone.value == honest.value
    assert alone.p < 0.05 < honest.p
    turned = together_with.difference("b", "a", "recall@0.25")
    assert turned is not None
    assert (turned.value, turned.p) == (-honest.value, honest.p)  # a page may tell it both ways
    assert honest.error == pytest.approx(np.hypot(alone.error, spread * np.sqrt(2)), rel=0.1)
    figure = together_with.figure("wild", "recall@0.25")
    assert figure is not None
    patients = bootstrap.standard_error(together_with.replicates("wild", "recall@0.25"))
    assert figure.error == pytest.approx(np.hypot(patients, spread / np.sqrt(3)))
    study = together_with.study
    runs = tuple(run if run.name == "wild" else replace(run, stage="none", start="wild") for run in study.runs)
    untrained = Statistics(replace(study, runs=runs), together_with.cohort, together_with.results)
    assert untrained.difference("a", "b", "recall@0.25") == alone  # what trains nothing has no luck
    runs = tuple(run if run.name == "wild" else replace(run, stage="base") for run in study.runs)
    stages = replace(study, runs=runs, stages={"base": {}, "finetune": {}})
    unknown = Statistics(stages, together_with.cohort, together_with.results)
    assert unknown.difference("a", "b", "recall@0.25") == alone  # nor is one stage's luck another's


def test_a_run_that_is_missing_is_missing() -> None:
    statistics = made_up_study({"a": [found_by(0.5)]})
    assert statistics.figure("b", "auc") is None
    assert statistics.difference("a", "b", "auc") is None
    assert verdict(None) == "missing"


def test_a_statement_of_several_pairs_holds_if_all_do() -> None:
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "undecided"]) == "undecided"
    assert together(["undecided", "does not hold", "missing"]) == "does not hold"
    assert together(["holds", "missing"]) == "missing"


def test_durations_are_for_people() -> None:
    assert [duration(seconds) for seconds in (40, 720, 3 * 3600 + 300)] == ["40 s", "12 min", "3 h 5 min"]


def test_pooling_twice_meets_the_same_slices_as_pooling_once() -> None:
    """A study renders 32 slices once; its 8 slices are those that 'mm3d prepare --slices 8' would take."""
    stored = np.random.default_rng(0).integers(0, 65535, (57, 6, 5)).astype(np.uint16)

    def prepared(slices: int) -> NDArray[np.uint16]:
        geometry = Geometry((0, 0, 5, 6), False, 6, 5, 57, slices)
        return np.stack([stored[list(geometry.region(s))].max(axis=0) for s in range(slices)])

    for slices in (16, 8):
        assert np.array_equal(pool_slices(prepared(32), slices), prepared(slices))


def test_pictures_are_a_folder_that_a_training_reads(tmp_path: Path) -> None:
    console = Console(quiet=True)
    write_pictures(tmp_path / "pictures", 12, 3, 0.5, (64, 48), console)
    write_pictures(tmp_path / "again", 12, 3, 0.5, (64, 48), console)
    scenes = prepared_breasts(tmp_path / "pictures", None, "FFDM")
    again = prepared_breasts(tmp_path / "again", None, "FFDM")
    assert 0 < sum(scene.malignant for scene in scenes) < 12
    for scene, other in zip(scenes, again, strict=True):
        for view, same in zip(scene.views, other.views, strict=True):
            kinds = [finding.kind for finding in view.view.annotations or ()]
            assert (RING in kinds) == scene.malignant
            assert view.image().shape == (1, 64, 48)
            assert np.array_equal(view.image(), same.image())
    inside = [_contrast(view) for scene in scenes if scene.malignant for view in scene.views]
    assert min(inside) > 0.05  # a ring is brighter than what is around it


def _contrast(view: Any) -> float:
    """Brightness of a ring's band against its middle."""
    ring = next(finding for finding in view.view.annotations if finding.kind == RING)
    x1, y1, x2, y2 = ring.box
    image = view.image()[0] / 65535
    y, x = np.mgrid[: image.shape[0], : image.shape[1]] + 0.5
    distance = np.hypot(x - (x1 + x2) / 2, y - (y1 + y2) / 2) / ((x2 - x1) / 2)
    return float(image[(distance > 0.65) & (distance < 0.85)].mean() - image[distance < 0.4].mean())


def test_the_gallery_shows_weights_boxes_and_truth(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs", breasts=2)
    view = prepared_breasts(folder, None, "DBT")[0].views[0]
    assert view.view.annotations
    (x1, y1, x2, y2), weights = view.view.annotations[0].box, (0.1, 0.6, 0.2, 0.1)
    finding = Annotation((x1, y1, x2, y2), True, 5, 3, 7, "mass")
    hit = Finding((x1 + 3, y1 + 3, x2 + 3, y2 + 3), 0.9, 5.0, 0.0, weights)  # beside the truth, or it would hide it
    aside = Finding((12, 22, 20, 30), 0.95, 1.0, 0.0, weights)
    faint = replace(hit, score=0.2)
    predicted = ViewPrediction("lcc", (aside, faint, hit), "DBT", 0.9)
    look = Look(RunSpec("mm3d", "M&M-3D", ()), view, finding, predicted, threshold=0.5)
    assert look.hit == hit
    assert look.weights == weights
    assert look.slice_right
    missed = replace(look, predicted=ViewPrediction("lcc", (aside,), "DBT", 0.9))
    assert missed.hit is None
    assert not missed.weights
    assert not replace(look, threshold=0.95).weights
    assert [view.file.geometry.slice_to_stored(s) for s in range(4)] == [1, 4, 7, 10]
    at, means = mean_weights([look, look])  # the middle is slice 5, and 2.5 slices are half of the visible ones
    assert at.tolist() == [-1.5, -0.5, 1.0, 2.0]
    assert means == pytest.approx([0.4, 2.4, 0.8, 0.4])
    draw_w([[look]], tmp_path / "w.png")
    draw_row([look, missed], tmp_path / "row.jpg")
    for name in ("w.png", "row.jpg"):
        with Picture.open(tmp_path / name) as picture:
            assert picture.width > 400
        assert (tmp_path / name).stat().st_size < 200_000
    curve, bar = (_coloured(tmp_path / "w.png", colour) for colour in ("#0072B2", "#D55E00"))
    assert min(curve) > 100
    assert min(bar) > 100
    truth, boxes = (_coloured(tmp_path / "row.jpg", colour) for colour in ("#00C853", "#E69F00"))
    assert min(truth) > 100
    assert boxes[0] > 1.5 * boxes[1] > 100  # two proposals, and one
    other = replace(look, annotation=replace(look.annotation, kind="architectural distortion"))
    draw_row([other, missed], tmp_path / "other.jpg")
    assert (tmp_path / "row.jpg").read_bytes() != (tmp_path / "other.jpg").read_bytes()  # it names the kind


def test_the_row_shows_a_gain_on_a_right_slice() -> None:
    def result(flat: tuple[int, ...], deep: tuple[int, ...]) -> Result:
        return made_up_result(Scores((), {"2D": flat, "3D": deep}, (), ()))

    first = result((100_000, 100_000, 300_000, -1), ())
    last = result((900_000, 500_000, 600_000, 950_000), (-1, 500_000, 600_000, 950_000))
    assert largest_gain(first, last, 0.5, 0.5) == 1  # 0 is on a wrong slice, 3 was never proposed before
    assert largest_gain(first, last, 10.0, 0.5) == 2  # scores count as shares of what their run calls
    assert largest_gain(first, result((900_000, -1, -1, -1), (-1,) * 4), 0.5, 0.5) is None


def _coloured(path: Path, colour: str) -> tuple[int, int]:
    """How many pixels have about the hue of a colour in the left and in the right half of a picture."""
    hue = np.asarray(Picture.new("RGB", (1, 1), colour).convert("HSV"))[0, 0, 0].astype(int)
    with Picture.open(path) as picture:
        hues, saturation, value = np.moveaxis(np.asarray(picture.convert("HSV")).astype(int), 2, 0)
    same = (abs(hues - hue) <= 8) & (saturation > 80) & (value > 60)
    left, right = np.array_split(same, 2, axis=1)
    return int(left.sum()), int(right.sum())


def test_a_pooled_folder_keeps_truth_and_geometry(tmp_path: Path) -> None:
    source = write_blobs(tmp_path / "deep", breasts=2, slices=4)
    pool_folder(source, tmp_path / "flat", PrepareSettings(48, 64, 2), Console(quiet=True))
    deep, flat = (prepared_breasts(folder, None, "DBT") for folder in (source, tmp_path / "flat"))
    for before, after in zip(deep, flat, strict=True):
        assert before.breast == after.breast
        for one, two in zip(before.views, after.views, strict=True):
            assert two.file.geometry == replace(one.file.geometry, slices=2)
            assert np.array_equal(two.image(), one.image().reshape(2, 2, 64, 48).max(axis=1))
