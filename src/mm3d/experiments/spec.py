"""A study's file: cohorts, one training recipe for each stage, and runs, one line each.

A run is a point on the four axes of docs/design.md (input, fusion, start, data). Nothing here trains or reads a pixel.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mm3d.data.inputs import InputName, modality_of
from mm3d.data.records import Modality
from mm3d.model.config import FusionName
from mm3d.phantom.run import VERSION as TRIAL_VERSION
from mm3d.phantom.trial import Trial
from mm3d.shared.config import from_dict, parse_toml, to_dict
from mm3d.shared.errors import InputError
from mm3d.train.config import DENSE, RANDOM, make_config

STUDIES = Path(__file__).parent / "studies"
INFERENCE_ONLY = "none"  # the stage of a run that trains nothing
TableName = Literal["inference", "finetuned", "data", "annotations", "start", "slices", "fusion", "mixed"]


@dataclass(frozen=True)
class CohortSpec:
    """Breasts (or pictures), made once in the study's folder."""

    source: Literal["phantom", "pictures", "bcs-dbt", "cohort"] = "phantom"
    """phantom: a virtual trial. pictures: synthetic pictures of other things. bcs-dbt: the download that is given.
    cohort: another cohort of the study, named by `of`, or a part of it."""
    of: str = ""
    """Source cohort: the name of the other cohort."""
    split: str | None = None
    """Source cohort: take only this part of it, such as train."""
    slices: int = 0
    """Pool volumes to this many slices. 0, for source cohort: keep the slices of the other cohort. A cohort of another
    cohort is pooled from its slices by the maximum, so that a breast is rendered only once."""
    breasts: int = 0
    """Phantom and pictures: how many."""
    seed: int = 0
    """Phantom and pictures: another seed makes other breasts."""
    malignant: float = 0.11
    """Phantom and pictures: probability of cancer (of what is to be found). The default is the paper's Table 1."""
    benign: float = 0.40
    """Phantom: probability of benign findings only."""

    def __post_init__(self) -> None:
        if (self.source == "cohort") != bool(self.of):
            raise InputError('a cohort has `of` if, and only if, it has source = "cohort"; add it or leave it out.')
        if self.source in ("phantom", "pictures") and self.breasts < 1:
            raise InputError(f"a cohort of source {self.source} needs a number of breasts, at least 1.")
        if self.source != "cohort" and self.slices < 1:
            raise InputError("slices must be at least 1: the number of slices that volumes are pooled to.")


@dataclass(frozen=True)
class Pool:
    """A cohort to train on, and what the model is given of it."""

    cohort: str
    input: InputName


@dataclass(frozen=True)
class RunSpec:
    """One line of a study: a model, how it is trained, and what it is tested on."""

    name: str
    """Also the name of its files."""
    label: str
    """The name in tables. Runs with one label and different shares of the data are one method."""
    tables: tuple[TableName, ...]
    """The tables of the page in which it is a row. With none, the page leaves it out."""
    input: InputName = "volume"
    """What the model is given of a view."""
    fusion: FusionName = "weighted"
    """How slices become a volume."""
    stage: str = "finetune"
    """The recipe, one of [stages]. none: no training, the start weights as they are."""
    start: str = "ffdm"
    """Another run (the same seed if it has it, otherwise its first), weights that the user gives, random, or dense."""
    train: str = "train"
    """The cohort to train on."""
    also: tuple[Pool, ...] = ()
    """More cohorts to train on."""
    test: str = "test"
    """The cohort to test on."""
    data: float = 1.0
    """Share of the training breasts."""
    annotated: float = 0.4
    """Share of the malignant breasts that have boxes. The default is the paper's."""
    drop_unannotated: bool = False
    """Leave out malignant breasts without boxes, as the starred methods do."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the training. Each is a job of its own."""
    against: str = ""
    """The run that the paired test compares this one with."""
    curve: bool = False
    """Whether the training of the first seed has a learning curve, measured on the study's validation cohort."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"the run {self.name!r} has no seed, or has a seed twice; give each seed once.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise InputError(f"{self.name!r} cannot name a run's files; use letters, digits, -, _ and dots.")

    @property
    def modality(self) -> Modality:
        return modality_of(self.input)


@dataclass(frozen=True)
class Job:
    """A run with one of its seeds."""

    run: RunSpec
    seed: int

    @property
    def name(self) -> str:
        return f"{self.run.name}-seed{self.seed}"


@dataclass(frozen=True)
class Expectation:
    """A statement that was made before any result, as pairs of runs. The first of a pair should be ahead."""

    statement: str
    ahead: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(pair) != 2 for pair in self.ahead):
            raise InputError(f"{self.statement!r}: ahead must be a list of pairs, the run that should be ahead first.")


@dataclass(frozen=True)
class StudySpec:
    """A whole study."""

    name: str
    """The name of its file and of its folders."""
    title: str
    """The title of its page."""
    cohorts: dict[str, CohortSpec]
    stages: dict[str, dict[str, Any]]
    """Recipes by name: settings as in a configuration of `mm3d train`. They go over those of `training`."""
    runs: tuple[RunSpec, ...]
    """In the order of the page."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings that all stages share."""
    trial: dict[str, Any] = field(default_factory=dict)
    """Settings that all virtual trials share, by the names of `mm3d phantom`, such as scale."""
    width: int = 96
    """Of prepared views, in pixels."""
    length: int = 192
    """Of prepared views, in pixels."""
    leave_out_benign: bool = False
    """Measure recall without benign volumes, as the paper does on BCS-DBT."""
    validation: str = ""
    """The cohort of learning curves. Nothing is chosen by it: the weights of the last step count."""
    given: tuple[str, ...] = ()
    """Names of start weights that the user gives with --start."""
    gallery: tuple[str, ...] = ()
    """Runs whose findings of one cancer are drawn side by side. The last is of volumes: its slice weights are drawn."""
    published: Literal["in-house", "bcs-dbt"] = "in-house"
    """Which of the paper's figures stand beside ours: those on its own data, or on BCS-DBT."""
    expect: tuple[Expectation, ...] = ()
    """What was expected, for the page."""
    remarks: tuple[str, ...] = ()
    """Paragraphs for the page, written before the study: what was chosen, and why."""
    discussion: tuple[str, ...] = ()
    """Paragraphs for the page, written after the study: what its results mean."""

    def __post_init__(self) -> None:
        self._check_cohorts()
        self._check_runs()
        self._check_stages()
        for job in self.jobs.values():
            self.line_of(job)
        names = [run.name for run in self.runs]
        for name in (*self.gallery, *(name for one in self.expect for pair in one.ahead for name in pair)):
            check_known("the study", "gallery or expect", name, names)
        if self.gallery and (last := self.run(self.gallery[-1])).input != "volume":
            raise InputError(f"the last run of the gallery must be of volumes, but {last.name!r} is of {last.input}.")

    def _check_cohorts(self) -> None:
        seeds: dict[int, str] = {}
        for name, cohort in self.cohorts.items():
            if cohort.of:
                check_known(f"the cohort {name!r}", "of", cohort.of, self.cohorts)
            if cohort.source == "phantom":
                self.trial_of(name)
                if (other := seeds.setdefault(cohort.seed, name)) != name:
                    raise InputError(f"{other} and {name} have one seed, so the same patients; give each its own.")

    def _check_runs(self) -> None:
        names = [run.name for run in self.runs]
        for run in self.runs:
            where = f"the run {run.name!r}"
            if names.count(run.name) > 1:
                raise InputError(f"two runs are called {run.name!r}; rename one.")
            check_known(where, "start", run.start, [*names, *self.given, RANDOM, DENSE])
            check_known(where, "stage", run.stage, [*self.stages, INFERENCE_ONLY])
            check_known(where, "against", run.against or run.name, names)
            for name in (run.test, *(pool.cohort for pool in self.pools(run))):
                check_known(where, "test or train", name, self.cohorts)
            if run.curve:
                check_known(where, "curve, and the study validation", self.validation, self.cohorts)
            if run.stage == INFERENCE_ONLY and run.start in (RANDOM, DENSE):
                raise InputError(f"{where} trains nothing and has no weights; name weights with start.")

    def _check_stages(self) -> None:
        """Find a wrong setting of a training before the first hour of work."""
        used = sorted({run.stage for run in self.runs})
        for name, stage in self.stages.items():
            if name not in used:
                raise InputError(f"no run uses [stages.{name}]; the stages of its runs: {', '.join(used)}.")
            settings = _merge(self.training, stage)
            if "start" in settings or "train" in settings.get("data", {}):
                raise InputError(f"[stages.{name}] has start or data.train, which runs decide; leave it out.")
            data = settings.get("data", {}) | {"train": [{"folder": "cohort"}]}
            make_config({"model": {}} | settings | {"data": data}, f"[stages.{name}]")

    def run(self, name: str) -> RunSpec:
        return next(run for run in self.runs if run.name == name)

    def runs_of(self, *tables: str) -> list[RunSpec]:
        """The rows of a table, or of several."""
        return [run for run in self.runs if not set(tables).isdisjoint(run.tables)]

    @property
    def jobs(self) -> dict[str, Job]:
        """All runs with all their seeds, by name."""
        return {job.name: job for job in (Job(run, seed) for run in self.runs for seed in run.seeds)}

    @property
    def gallery_jobs(self) -> list[Job]:
        """The runs of the gallery, with their first seeds."""
        return [Job(run, run.seeds[0]) for run in map(self.run, self.gallery)]

    def start_of(self, job: Job) -> Job | None:
        """The job whose weights a job starts from, if they are made by this study."""
        if job.run.start in (RANDOM, DENSE, *self.given):
            return None
        start = self.run(job.run.start)
        return Job(start, job.seed if job.seed in start.seeds else start.seeds[0])

    def line_of(self, job: Job) -> list[Job]:
        """A job, the job that it starts from, and so on."""
        line = [job]
        while (start := self.start_of(line[-1])) is not None:
            if start in line:
                raise InputError(f"the run {job.run.name!r} starts from itself, through others; change start.")
            line.append(start)
        return line

    def pools(self, run: RunSpec) -> tuple[Pool, ...]:
        """What a run trains on."""
        return () if run.stage == INFERENCE_ONLY else (Pool(run.train, run.input), *run.also)

    def settings(self, run: RunSpec) -> dict[str, Any]:
        """The recipe of a run's stage: settings of a training, without data, start and seed."""
        return {} if run.stage == INFERENCE_ONLY else _merge(self.training, self.stages[run.stage])

    def slices(self, cohort: str) -> int:
        """How many slices the volumes of a cohort have."""
        spec = self.cohorts[cohort]
        return spec.slices or self.slices(spec.of)

    def place(self, cohort: str) -> tuple[str, str | None]:
        """The cohort whose prepared folder holds the breasts of this one, and which split of it they are.

        A cohort that does not change the number of slices has no folder of its own."""
        spec = self.cohorts[cohort]
        if not spec.of:
            return cohort, spec.split
        folder, split = self.place(spec.of)
        same = self.slices(cohort) == self.slices(spec.of)
        return folder if same else cohort, spec.split or split

    def cohorts_of(self, run: RunSpec) -> list[str]:
        """The cohorts that a run reads."""
        names = [*(pool.cohort for pool in self.pools(run)), run.test]
        names += [self.validation] if run.curve else []
        names += [run.train] if run.input == "hm" else []  # for the average histogram of its mammograms
        return list(dict.fromkeys(names))

    def sources_of(self, cohort: str) -> list[str]:
        """A cohort after the one that it is made of, and so on."""
        of = self.cohorts[cohort].of
        return [*self.sources_of(of), cohort] if of else [cohort]

    def images(self) -> dict[str, Any]:
        """What all images of a study depend on."""
        return {"trial": self.trial, "width": self.width, "length": self.length, "phantom": TRIAL_VERSION}

    def recipe(self, job: Job) -> dict[str, Any]:
        """Everything that a result depends on, as plain data. Another recipe gives another result."""
        direct = (job.run.test, *(pool.cohort for pool in self.pools(job.run)))
        cohorts = {name: self.cohorts[name] for start in direct for name in self.sources_of(start)}
        line = {k: v for k, v in to_dict(job.run).items() if k not in ("label", "tables", "seeds", "against", "curve")}
        start = self.start_of(job)
        return {
            "run": line,
            "training": self.settings(job.run),
            "cohorts": {name: to_dict(cohort) for name, cohort in cohorts.items()},
            "images": self.images(),
            "start": None if start is None else self.recipe(start),
        }

    def trial_of(self, cohort: str) -> Trial:
        """The virtual trial that a cohort is."""
        own = {name: getattr(self.cohorts[cohort], name) for name in ("breasts", "seed", "malignant", "benign")}
        return from_dict(Trial, self.trial | own, f"the cohort {cohort}")


def check_known(where: str, setting: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise InputError(f"{where} has {setting} = {value!r}, which is not one of {', '.join(known)}.")


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Two tables of settings as one. `over` counts where both have a value."""
    merged = dict(under)
    for name, value in over.items():
        merged[name] = _merge(merged[name], value) if isinstance(value, dict) and name in merged else value
    return merged


def read_study(name: str) -> StudySpec:
    """Read a study's file. `name` is a .toml file, or the name of a study that comes with mm3d."""
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in STUDIES.glob("*.toml")))
        raise InputError(f"there is no study {name}; give a .toml file, or one of those that come with mm3d: {known}.")
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not TOML ({error}); correct it.") from error
    if "name" in content:
        raise InputError(f"{path} has the setting name, but a study has the name of its file; leave it out.")
    return from_dict(StudySpec, content | {"name": path.stem}, str(path))
