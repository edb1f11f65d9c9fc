"""What a study consists of: cohorts, one training recipe for each stage, and runs, a line each. A TOML file.

A run is a point on the four axes of docs/design.md (input, fusion, start, data). Nothing here trains or reads a pixel.
"""

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mm3d.data.inputs import InputName, modality_of
from mm3d.data.records import Modality
from mm3d.model.fusion import FusionName
from mm3d.phantom.run import VERSION as TRIAL_VERSION
from mm3d.phantom.trial import Trial
from mm3d.shared.config import check, from_dict, to_dict
from mm3d.shared.errors import InputError
from mm3d.train.config import CONFIGS, DENSE, RANDOM, TrainConfig, make_config

STUDIES = CONFIGS / "studies"
INFERENCE_ONLY = "none"  # the stage of a run that trains nothing
TableName = Literal["inference", "finetuned", "data", "annotations", "start", "slices", "fusion", "mixed"]


@dataclass(frozen=True)
class CohortSpec:
    """Breasts (or pictures), made once in the study's folder."""

    source: Literal["phantom", "pictures", "bcs-dbt", "cohort"] = "phantom"
    """phantom: a virtual trial. pictures: synthetic pictures of other things. bcs-dbt: the download that is given.
    cohort: another cohort of the study, named by `of`, or a part of it."""
    of: str = ""
    """Source cohort: the name of the other one."""
    split: str | None = None
    """Source cohort: only this part of it, such as train."""
    slices: int = 0
    """Volumes are pooled to so many slices; 0, of source cohort: as they are. Of another cohort: by the maximum of its
    slices, so that a breast is rendered once for all depths."""
    breasts: int = 0
    """Phantom and pictures: how many."""
    seed: int = 0
    """Phantom and pictures: other seeds, other breasts."""
    malignant: float = 0.11
    """Phantom and pictures: probability of cancer (of what is to be found). The default is the paper's Table 1."""
    benign: float = 0.40
    """Phantom: probability of benign findings only."""

    def __post_init__(self) -> None:
        check(self)
        if (self.source == "cohort") != bool(self.of):
            raise InputError('a cohort with source = "cohort" names the other one with of, and no other has of.')
        if self.source in ("phantom", "pictures") and self.breasts < 1:
            raise InputError(f"a cohort of source {self.source} needs a number of breasts, at least 1.")
        if self.source != "cohort" and self.slices < 1:
            raise InputError("slices must be at least 1: how many slices volumes are pooled to.")


@dataclass(frozen=True)
class Pool:
    """A cohort to train on, and what the model is given of it."""

    cohort: str
    input: InputName

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class RunSpec:
    """One line of a study: a model, how it was trained, and what it is tested on."""

    name: str
    """Also the name of its files."""
    label: str
    """In tables; rows of one label and other sizes of data are one method."""
    tables: tuple[TableName, ...]
    """The page's tables that it is a row of; none: the page leaves it out."""
    input: InputName = "volume"
    """What the model is given of a view."""
    fusion: FusionName = "weighted"
    """How slices become a volume."""
    stage: str = "finetune"
    """The recipe, one of [stages]; none: no training, the start weights as they are."""
    start: str = "ffdm"
    """Another run (of the same seed, or else its first), weights that the user gives, random, or dense."""
    train: str = "train"
    """The cohort to train on."""
    also: tuple[Pool, ...] = ()
    """Cohorts that are mixed in."""
    test: str = "test"
    """The cohort to test on."""
    data: float = 1.0
    """Share of the training breasts."""
    annotated: float = 0.4
    """Share of the malignant ones that have boxes; 0.4 is the paper's."""
    drop_unannotated: bool = False
    """Leave malignant breasts without boxes out: the starred methods."""
    seeds: tuple[int, ...] = (0,)
    """Of the training; each is a run of its own."""
    against: str = ""
    """The run that the paired test compares this one with."""

    def __post_init__(self) -> None:
        check(self)
        if not self.seeds:
            raise InputError(f"the run {self.name!r} has no seed; give one.")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"the run {self.name!r} has a seed twice; give each once.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise InputError(f"{self.name!r} is no name for a run's files; use letters, digits, -, _ and dots.")

    @property
    def modality(self) -> Modality:
        return modality_of(self.input)


@dataclass(frozen=True)
class Expectation:
    """A statement that was made before any result, as pairs of runs of which the first should be ahead."""

    statement: str
    ahead: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        check(self)
        if any(len(pair) != 2 for pair in self.ahead):
            raise InputError(f"{self.statement!r}: ahead is a list of pairs, the run that should be ahead first.")


@dataclass(frozen=True)
class StudySpec:
    """A whole study."""

    name: str
    """That of its file, and of its folders."""
    title: str
    """Of its page."""
    cohorts: dict[str, CohortSpec]
    """By name."""
    stages: dict[str, dict[str, Any]]
    """Recipes by name: settings of a training as in its own file, over those of `training`."""
    runs: tuple[RunSpec, ...]
    """In the order of the page."""
    training: dict[str, Any] = field(default_factory=dict)
    """What all stages share."""
    trial: dict[str, Any] = field(default_factory=dict)
    """Settings that all virtual trials share, by the names that `mm3d phantom` has for them, such as scale."""
    width: int = 96
    """Of prepared views."""
    length: int = 192
    """Of prepared views."""
    leave_out_benign: bool = False
    """Judge recall without benign volumes, as the paper does on BCS-DBT."""
    given: tuple[str, ...] = ()
    """Names of start weights that the user gives with --start."""
    gallery: tuple[str, ...] = ()
    """Runs whose looks at one cancer are drawn side by side; the last is of volumes, and its slice weights are, too."""
    published: Literal["in-house", "bcs-dbt"] = "in-house"
    """Which of the paper's figures stand beside ours: of its own data, or of BCS-DBT."""
    expect: tuple[Expectation, ...] = ()
    """What was expected, for the page."""
    remarks: tuple[str, ...] = ()
    """Paragraphs for the page: what was chosen before the study, and why."""
    discussion: tuple[str, ...] = ()
    """Paragraphs for the page, written after the study: what its results mean."""

    def __post_init__(self) -> None:
        check(self)
        names = [run.name for run in self.runs]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two runs are called {name!r}; rename one.")
        for cohort in self.cohorts.values():
            if cohort.of and cohort.of not in self.cohorts:
                raise InputError(f"a cohort is made of {cohort.of!r}, which is no cohort of the study.")
        for run in self.runs:
            self._check_run(run, names)
        for name in self.gallery:
            if name not in names:
                raise InputError(f"gallery has {name!r}, which is no run of the study.")
        if self.gallery and (last := self.run(self.gallery[-1])).input != "volume":
            raise InputError(f"the last run of the gallery must be of volumes, and {last.name!r} is of {last.input}.")
        for expectation in self.expect:
            for name in (name for pair in expectation.ahead for name in pair):
                if name not in names:
                    raise InputError(f"{expectation.statement!r} is about {name!r}, which is no run of the study.")

    def _check_run(self, run: RunSpec, names: list[str]) -> None:
        for what, value, known in (
            ("start", run.start, [*names, *self.given, RANDOM, DENSE]),
            ("stage", run.stage, [*self.stages, INFERENCE_ONLY]),
            ("test", run.test, list(self.cohorts)),
            ("against", run.against or run.name, names),
            *(("train", pool.cohort, list(self.cohorts)) for pool in self.pools(run)),
        ):
            if value not in known:
                raise InputError(f"the run {run.name!r} has {what} = {value!r}, which is none of {', '.join(known)}.")
        if run.stage == INFERENCE_ONLY and run.start in (RANDOM, DENSE):
            raise InputError(f"the run {run.name!r} trains nothing and starts from nothing; name weights with start.")
        before = run
        for _ in names:
            if before.start not in names:
                return
            before = self.run(before.start)
        raise InputError(f"the run {run.name!r} starts from itself, by way of others; mend start.")

    def run(self, name: str) -> RunSpec:
        return next(run for run in self.runs if run.name == name)

    def pools(self, run: RunSpec) -> tuple[Pool, ...]:
        """What a run trains on."""
        return () if run.stage == INFERENCE_ONLY else (Pool(run.train, run.input), *run.also)

    def settings(self, run: RunSpec) -> dict[str, Any]:
        """The recipe of a run's stage: plain settings of a training, without data, start and seed."""
        return _over(self.training, self.stages[run.stage])


def _over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Two tables of settings as one; `over` counts where both have a value."""
    merged = dict(under)
    for name, value in over.items():
        merged[name] = _over(merged[name], value) if isinstance(value, dict) and name in merged else value
    return merged


def check_stages(study: StudySpec, where: str) -> None:
    """A wrong setting is said before the first hour of work, not after it."""
    used = {run.stage for run in study.runs}
    for name in study.stages:
        if name not in used:
            raise InputError(f"{where}: [stages.{name}] is of no run, whose stages are {', '.join(sorted(used))}.")
        settings = _over(study.training, study.stages[name])
        for key in ("data", "start"):
            if key in settings and not (key == "data" and "train" not in settings[key]):
                raise InputError(f"{where}: [stages.{name}] has {key}, which runs decide; leave it out.")
        data = settings.get("data", {}) | {"train": [{"folder": "cohort"}]}
        make_config({"model": {}} | settings | {"data": data}, f"{where}: [stages.{name}]")


def config_for(
    study: StudySpec, run: RunSpec, seed: int, start: str, pools: list[dict[str, Any]], where: str
) -> TrainConfig:
    """The whole training configuration of a run, its start weights and the folders of its cohorts being known."""
    settings = study.settings(run)
    data = settings.get("data", {}) | {
        "train": pools,
        "fraction": run.data,
        "annotated_fraction": run.annotated,
        "drop_unannotated_malignant": run.drop_unannotated,
    }
    model = settings.get("model", {}) | {"fusion": run.fusion}
    if start not in (RANDOM, DENSE):
        model.pop("preset", None)  # the model is the start weights' own
    loop = settings.get("loop", {}) | {"seed": seed}
    return make_config(settings | {"data": data, "model": model, "loop": loop, "start": start}, where)


def recipe(study: StudySpec, run: RunSpec, seed: int) -> dict[str, Any]:
    """All that a result depends on, as plain data: another recipe, another result."""
    cohorts = {name: study.cohorts[name] for name in [run.test, *(pool.cohort for pool in study.pools(run))]}
    for cohort in list(cohorts.values()):
        while cohort.of:
            cohorts[cohort.of] = cohort = study.cohorts[cohort.of]
    line = {k: v for k, v in to_dict(run).items() if k not in ("label", "tables", "seeds", "against")}
    return {
        "run": line,
        "training": {} if run.stage == INFERENCE_ONLY else study.settings(run),
        "cohorts": {name: to_dict(cohort) for name, cohort in cohorts.items()},
        "images": images_of(study),
        "start": start_recipe(study, run, seed),
    }


def images_of(study: StudySpec) -> dict[str, Any]:
    """What all images of a study depend on."""
    return {"trial": study.trial, "width": study.width, "length": study.length, "phantom": TRIAL_VERSION}


def start_recipe(study: StudySpec, run: RunSpec, seed: int) -> dict[str, Any] | None:
    started = start_of(study, run, seed)
    return None if started is None else recipe(study, *started)


def start_of(study: StudySpec, run: RunSpec, seed: int) -> tuple[RunSpec, int] | None:
    """The run and seed whose weights a run starts from, if it is one of the study's."""
    if run.start in (RANDOM, DENSE, *study.given):
        return None
    start = study.run(run.start)
    return start, seed if seed in start.seeds else start.seeds[0]


def read_study(name: str) -> StudySpec:
    """A study file, or the name of one that comes with mm3d."""
    path = Path(name)
    if path.suffix != ".toml":
        path = STUDIES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in STUDIES.glob("*.toml")))
        raise InputError(f"{name} is no study; give a .toml file, or one of those that come with mm3d: {known}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not TOML ({error}); mend it.") from error
    if "name" in content:
        raise InputError(f"{path} has a name, but a study is called after its file; leave name out.")
    study = from_dict(StudySpec, content | {"name": path.stem}, str(path))
    check_stages(study, str(path))
    seeds: dict[int, str] = {}
    for name, cohort in study.cohorts.items():
        if cohort.source == "phantom":
            trial_of(study, cohort, f"{path}: the cohort {name}")
            if (other := seeds.setdefault(cohort.seed, name)) != name:
                raise InputError(f"{path}: {other} and {name} have one seed, so the same patients; give each its own.")
    return study


def trial_of(study: StudySpec, cohort: CohortSpec, where: str) -> Trial:
    """The virtual trial that a cohort is."""
    own = {name: getattr(cohort, name) for name in ("breasts", "seed", "malignant", "benign")}
    return from_dict(Trial, study.trial | own, where)


def only(study: StudySpec, names: list[str]) -> StudySpec:
    """The part of a study that consists of some runs, and of those that they start from."""
    kept: set[str] = set()
    for name in names:
        if name not in {run.name for run in study.runs}:
            raise InputError(
                f"--only {name}: the study has no such run; its runs: {', '.join(r.name for r in study.runs)}."
            )
        run = study.run(name)
        while run.name not in kept:
            kept.add(run.name)
            if start := start_of(study, run, run.seeds[0]):
                run = start[0]
    runs = tuple(
        replace(run, against=run.against if run.against in kept else "") for run in study.runs if run.name in kept
    )
    expect = tuple(one for one in study.expect if kept.issuperset(name for pair in one.ahead for name in pair))
    return replace(study, runs=runs, expect=expect, gallery=study.gallery if kept.issuperset(study.gallery) else ())
