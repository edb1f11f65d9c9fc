"""Measure weights on real breasts: everything that docs/real.md says of them.

    python tools/measure_real.py mammo --films films --films-weights runs/real-ffdm-large \
        --slices BCS-DBT/annotated-slices --others dbt ffdm -o measured

--films is a folder that `mm3d prepare images … --validation-share 0.2` made at the size of the weights; its split
validation is measured. Where the weights were trained on these films, too, --films-weights are measured instead.
--slices has single slices of volumes and their manifest.csv. OUT gets tables (measured.md, measured.json), the figures
of docs/real.md (real.png), the evaluations, and contact sheets. Sheets show patients: they are not for the repository.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from real_pictures import draw_sheet, join_figures
from slice_choice import COLUMNS, measure_slice_choice

from mm3d import cli
from mm3d.data.inputs import Histogram, InputName, prepared_breasts, training_histogram
from mm3d.data.prepare.prepared import PreparedBreast, read_notes, write_cohort
from mm3d.data.records import Cohort
from mm3d.evaluate.match import EvaluateSettings, match_predictions
from mm3d.evaluate.metrics.froc import recall_at
from mm3d.evaluate.truth import read_truth
from mm3d.model import weights
from mm3d.model.detector import Detector
from mm3d.model.scores import mean_logit
from mm3d.output.predictions import BreastPrediction, Finding, Predictions, ViewPrediction, write_json
from mm3d.predict.detect import load_model, predict_breast
from mm3d.shared.errors import InputError
from mm3d.shared.files import save_json

RATES = (0.25, 0.5, 1.0, 2.0)  # false positives per image
DRAWS = 20  # of random boxes


@dataclass(frozen=True)
class Weights:
    """Weights and the size that they see."""

    name: str
    model: Detector
    width: int
    length: int

    @classmethod
    def find(cls, given: str) -> "Weights":
        path = weights.find(given)
        size = weights.read_header(path).provenance["prepare"]
        return cls(weights.name_of(path).replace("/", "-"), load_model(path), size["width"], size["length"])


def run(command: str, *words: Any) -> None:
    """A command of mm3d, which must end well."""
    if cli.main([command, *map(str, words)]):
        raise SystemExit(f"mm3d {command} did not end well; see above.")


def evaluate(files: Sequence[Path], truth: Path, output: Path, *words: Any) -> dict[str, Any]:
    """`mm3d evaluate`, and what it wrote."""
    rates = [word for rate in RATES for word in ("--at", rate)]
    run("evaluate", *files, "--truth", truth, "-o", output, *rates, *words)
    content: dict[str, Any] = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    return content


def predict(
    model: Detector, breasts: Sequence[PreparedBreast], name: InputName, histogram: Histogram | None = None
) -> tuple[BreastPrediction, ...]:
    return tuple(predict_breast(model, breast, name, histogram) for breast in breasts)


def predict_single_views(
    model: Detector, breasts: Sequence[PreparedBreast], name: InputName
) -> tuple[BreastPrediction, ...]:
    """Each view by itself, as if the breast had no other. The breast's score is the model's mean over its views."""
    predicted = []
    for breast in breasts:
        alone = [predict_breast(model, replace(breast, views=(view,)), name) for view in breast.views]
        views = tuple(view for one in alone for view in one.views)
        logits = torch.tensor([view.score for view in views], dtype=torch.float64).logit()
        score = float(mean_logit(logits, torch.ones_like(logits, dtype=torch.bool)).sigmoid())
        predicted.append(replace(alone[0], views=views, score=score))
    return tuple(predicted)


def typical_sizes(breasts: Sequence[PreparedBreast]) -> NDArray[np.float64]:
    """Width and height of the annotations (G, 2), as a share of the prepared view."""
    return np.array(
        [
            ((x2 - x1) / view.file.geometry.width, (y2 - y1) / view.file.geometry.height)
            for breast in breasts
            for view in breast.views
            for x1, y1, x2, y2 in (annotation.box for annotation in view.annotations() or ())
        ]
    )


def draw_random_boxes(
    breasts: Sequence[PreparedBreast],
    predicted: Sequence[BreastPrediction],
    sizes: NDArray[np.float64],
    random: np.random.Generator,
) -> tuple[BreastPrediction, ...]:
    """As many boxes as were predicted for each view: sizes of annotations, anywhere in the view, with any score."""

    def draw(geometry: Any, count: int) -> Iterator[Finding]:
        for width, height in sizes[random.integers(len(sizes), size=count)]:
            x, y = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
            shares = np.array([x, y, x + width, y + height])
            box = (shares * [geometry.width, geometry.height, geometry.width, geometry.height]).tolist()
            yield Finding(geometry.box_to_stored(tuple(box)), random.random())

    drawn = []
    for breast, own in zip(breasts, predicted, strict=True):
        views = tuple(
            ViewPrediction(view.view, tuple(draw(prepared.file.geometry, len(view.findings))), view.modality)
            for prepared, view in zip(breast.views, own.views, strict=True)
        )
        drawn.append(BreastPrediction(own.patient, own.exam, own.laterality, views))
    return tuple(drawn)


def measure_random_boxes(
    breasts: Sequence[PreparedBreast],
    predicted: Sequence[BreastPrediction],
    sizes: NDArray[np.float64],
    truth: Path,
    split: str | None,
    file: Path,
) -> dict[str, list[float]]:
    """Mean and spread of the recall of some draws at each rate. The first draw is written, for the figures."""
    cohort, settings = read_truth(truth), EvaluateSettings(split=split)
    recalls = []
    for seed in range(DRAWS):
        drawn = Predictions(draw_random_boxes(breasts, predicted, sizes, np.random.default_rng(seed)))
        if not seed:
            write_json(drawn, file)
        scores = match_predictions("random", drawn, cohort, settings).froc["2D", "finding"]
        recalls.append([recall_at(scores, rate) for rate in RATES])
    means, spreads = np.mean(recalls, axis=0), np.std(recalls, axis=0, ddof=1)
    return {f"R@{rate:g}": [mean, spread] for rate, mean, spread in zip(RATES, means, spreads, strict=True)}


def measure_films(ours: Weights, folder: Path, output: Path, measured: dict[str, Any]) -> float:
    """The validation films: both views, one view at a time, random boxes. Returns the threshold at 0.25."""
    breasts = prepared_breasts(folder, "validation", "FFDM")
    size = breasts[0].views[0].file.settings
    if (size.width, size.length) != (ours.width, ours.length):
        raise InputError(
            f"{folder} is prepared to {size.length} x {size.width}, and {ours.name} sees {ours.length} x {ours.width}; "
            "prepare the films to that size."
        )
    output.mkdir(parents=True, exist_ok=True)
    both, single, random = (output / f"{name}.json" for name in ("two-views", "one-view", "random"))
    predicted = predict(ours.model, breasts, "ffdm")
    write_json(Predictions(predicted), both)
    write_json(Predictions(predict_single_views(ours.model, breasts, "ffdm")), single)
    sizes = typical_sizes(prepared_breasts(folder, "train", "FFDM"))
    measured["random boxes on films"] = measure_random_boxes(breasts, predicted, sizes, folder, "validation", random)
    result = evaluate([both], folder, output / "alone", "--split", "validation")
    measured["films"] = summarise(result)
    evaluate([both, single, random], folder, output, "--split", "validation")
    pairs = [breast for breast in breasts if all(view is not None for view in breast.pairs()[0])]
    write_pairs(pairs, folder, output / "pairs")
    compared = evaluate([both, single], output / "pairs", output / "pairs-measured", "--skip-unknown")
    measured["two views against one"] = {"breasts": len(pairs)} | summarise(compared) | differences(compared)
    points = result["systems"][0]["operating_points"]
    threshold: float = next(p["threshold"] for p in points if p.get("wanted") == {"fp_per_volume": RATES[0]})
    draw_sheet(breasts, predicted, threshold, output / "sheet.jpg")
    return threshold


def write_pairs(pairs: Sequence[PreparedBreast], source: Path, folder: Path) -> None:
    """A prepared folder of some breasts of another one, whose pixels it shares."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "views").exists():
        (folder / "views").symlink_to((source / "views").resolve())
    cohort = Cohort(source.name, tuple(breast.breast for breast in pairs), notes=tuple(read_notes(source)))
    keys = {view.view.name: view.pixels.stem for breast in pairs for view in breast.views}
    write_cohort(folder, cohort, keys, [])


def measure_slices(
    all_weights: Sequence[Weights], slices: Path, films: Path, threshold: float, output: Path, measured: dict[str, Any]
) -> None:
    """Single slices: each of the weights at its own size, ours with matched histograms, and random boxes."""
    output.mkdir(parents=True, exist_ok=True)
    ours, files = all_weights[0], []
    for number, one in enumerate(all_weights):
        folder = output / f"prepared-{one.length}"
        size = ("--width", one.width, "--length", one.length)
        run("prepare", "images", slices, "--modality", "DBT", *size, "--columns", COLUMNS, "--jobs", 1, "-o", folder)
        breasts = prepared_breasts(folder, None, "DBT")
        predicted = predict(one.model, breasts, "volume")
        files.append(output / f"{one.name}.json")
        write_json(Predictions(predicted), files[-1])
        if not number:
            truth = folder
            draw_sheet(breasts, predicted, threshold, output / "sheet.jpg")
            matched = predict(one.model, breasts, "hm", training_histogram(films, "train"))
            files.append(output / f"{one.name}-matched.json")
            write_json(Predictions(matched), files[-1])
            sizes, random = typical_sizes(prepared_breasts(films, "train", "FFDM")), output / "random.json"
            measured["random boxes on slices"] = measure_random_boxes(breasts, predicted, sizes, truth, None, random)
    result = evaluate([*files, output / "random.json"], truth, output)
    measured["slices"] = summarise(result)
    everything = as_malignant(truth, output / "all-boxes")
    measured["slices, all boxes"] = summarise(evaluate(files, everything, output / "all-boxes-measured"))
    evaluate([files[0]], truth, output / "alone")
    measured["which slice"] = measure_slice_choice(ours.model, slices, (ours.width, ours.length), output / "volumes")


def as_malignant(source: Path, folder: Path) -> Path:
    """A prepared folder in which benign boxes are to be found, too."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads((source / "cohort.json").read_text(encoding="utf-8"))
    for breast in content["breasts"]:
        for view in breast["views"]:
            for annotation in view["annotations"] or ():
                annotation["malignant"], breast["label"] = True, "malignant"
    save_json(folder / "cohort.json", content)
    if not (folder / "views").exists():
        (folder / "views").symlink_to((source / "views").resolve())
    return folder


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    """Recall and AUC of each system, each with its interval, and how many were to be found."""
    rows = {}
    for system in result["systems"]:
        recalls, area = system["recall"]["2D"]["finding"], system["auc"]["breast"]
        rows[system["name"]] = {
            **{f"R@{row['fp_per_volume']:g}": [row["recall"], *row["interval"]] for row in recalls},
            "AUC": [area["auc"], *area["interval"]],
            "count": recalls[0]["count"],
            "images": recalls[0]["volumes"],
            "malignant breasts": area["malignant"],
            "other breasts": area["others"],
        }
    return {"systems": rows}


def differences(result: dict[str, Any]) -> dict[str, Any]:
    """Differences of the first two systems with p: of recall by finding, and of AUC by breast."""
    rows = {}
    for row in result["comparisons"]:
        if row["metric"] == "recall" and (row["rule"], row["level"]) == ("2D", "finding"):
            rows[f"R@{row['fp_per_volume']:g}"] = {name: row[name] for name in ("difference", "interval", "p")}
        elif row["metric"] == "auc" and row["level"] == "breast":
            rows["AUC"] = {name: row[name] for name in ("difference", "standard_error", "p")}
    return {"differences": rows}


def as_tables(measured: dict[str, Any]) -> str:
    """The tables of docs/real.md."""
    lines = []
    columns = (*(f"R@{rate:g}" for rate in RATES), "AUC")
    for part in ("films", "two views against one", "slices", "slices, all boxes"):
        lines += ["", f"{part}", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for name, row in measured[part]["systems"].items():
            cells = (_cell(*row[column]) for column in columns)
            lines.append(f"| {name}, {row['count']} boxes in {row['images']} images | {' | '.join(cells)} |")
        for name, row in measured[part].get("differences", {}).items():
            p = "not known" if row["p"] is None else f"{row['p']:.3f}"
            lines += ["", f"{name}: difference {row['difference']:+.3f}, p = {p}"]
    for part in ("random boxes on films", "random boxes on slices"):
        cells = (f"{name} {mean:.3f} ± {spread:.3f}" for name, (mean, spread) in measured[part].items())
        lines += ["", f"{part}, mean and spread of {DRAWS} draws: {', '.join(cells)}"]
    choice = measured["which slice"]
    lines += [
        "",
        "which slice: {boxes} boxes, {found} found, {right} right, {by chance:.1f} by chance".format(**choice),
    ]
    return "\n".join(lines) + "\n"


def _cell(value: float | None, low: float | None, high: float | None) -> str:
    """A figure with its interval, as far as they could be computed."""
    if value is None:
        return ""
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} ({low:.2f}–{high:.2f})"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("--films", type=Path, required=True)
    parser.add_argument(
        "--films-weights", help="weights that are measured on films instead, and were not trained on them"
    )
    parser.add_argument("--slices", type=Path, required=True)
    parser.add_argument("--others", nargs="*", default=[], help="weights that are measured on the slices, too")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args(words)
    all_weights = [Weights.find(name) for name in (arguments.weights, *arguments.others)]
    measured: dict[str, Any] = {"weights": all_weights[0].name}
    output = arguments.output
    on_films = Weights.find(arguments.films_weights) if arguments.films_weights else all_weights[0]
    threshold = measure_films(on_films, arguments.films, output / "films", measured)
    measure_slices(all_weights, arguments.slices, arguments.films, threshold, output / "slices", measured)
    figures = (output / "films" / "froc.png", output / "films" / "roc.png", output / "slices" / "froc.png")
    join_figures(figures, output / "real.png")
    save_json(output / "measured.json", measured)
    (output / "measured.md").write_text(as_tables(measured), encoding="utf-8")
    print((output / "measured.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
