"""Which runs are left, in which order, and how long they take.

Cheapest first, and nothing before what it starts from. A cost is what finished runs of the same kind took; before there
is one, that of a model of the machine that docs/benchmarks.md was measured on, scaled by how finished runs of other
kinds compared with it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mm3d.experiments.cohorts import slices_of
from mm3d.experiments.results import Result
from mm3d.experiments.spec import INFERENCE_ONLY, RunSpec, StudySpec, config_for, start_of
from mm3d.train.config import DENSE, RANDOM

# Seconds on one core for a breast (both views) of 192 x 96 pixels, model preset mini: forward and backward of one
# slice, and of every further one; the forward pass alone takes about a third.
FIRST_SLICE, MORE_SLICES = 0.09, 0.045
FORWARD = 0.35
START_UP = 15.0  # seconds to import, read the lists and bootstrap
TEST_BREASTS = 1000  # of a download, whose size is not known before it is read


@dataclass(frozen=True)
class Job:
    """One run with one seed."""

    run: RunSpec
    seed: int

    @property
    def name(self) -> str:
        return f"{self.run.name}-seed{self.seed}"


@dataclass(frozen=True)
class Cost:
    """Seconds on one core."""

    seconds: float
    measured: bool


def jobs_of(study: StudySpec) -> list[Job]:
    return [Job(run, seed) for run in study.runs for seed in run.seeds]


def kind_of(study: StudySpec, run: RunSpec) -> tuple[Any, ...]:
    """Runs of one kind take the same time: as many breasts, by the same model, of the same size."""
    train = slices_of(study, run.train) if study.pools(run) and run.input == "volume" else 1
    return (run.stage, run.input, run.fusion, run.start == DENSE, train, run.test, tuple(p.input for p in run.also))


def modelled(study: StudySpec, run: RunSpec) -> float:
    """Seconds, before anything was measured."""
    deep = slices_of(study, run.test)
    test = study.cohorts[run.test].breasts or TEST_BREASTS
    of = study.cohorts[run.test].of
    while of:
        test, of = study.cohorts[of].breasts or test, study.cohorts[of].of
    one = {"volume": _breast(deep), "slices": deep * _breast(1), "msp": (deep + 1) * _breast(1)}
    seconds = START_UP + test * FORWARD * one.get(run.input, _breast(1))
    if run.stage == INFERENCE_ONLY:
        return seconds
    pools = [{"folder": pool.cohort, "input": pool.input} for pool in study.pools(run)]
    config = config_for(study, run, run.seeds[0], DENSE if run.start == DENSE else RANDOM, pools, run.name)
    depths = [slices_of(study, pool.cohort) if pool.input == "volume" else 1 for pool in study.pools(run)]
    breasts = config.loop.steps * config.loop.batch * config.loop.accumulate
    seconds += breasts * statistics.mean(map(_breast, depths))
    if run.start == DENSE:
        seconds += config.dense.steps * config.dense.batch * 0.5 * statistics.mean(map(_breast, depths))
    return seconds


def _breast(slices: int) -> float:
    return FIRST_SLICE + MORE_SLICES * (slices - 1)


def costs(study: StudySpec, results: Mapping[tuple[str, int], Result]) -> dict[str, Cost]:
    """The cost of every run, by name."""
    took: dict[tuple[Any, ...], list[float]] = {}
    ratios = []
    for (name, _), result in results.items():
        run = study.run(name)
        seconds = START_UP + sum(result.seconds.values())
        took.setdefault(kind_of(study, run), []).append(seconds)
        ratios.append(seconds / modelled(study, run))
    ratio = statistics.median(ratios) if ratios else 1.0
    found = {}
    for run in study.runs:
        own = took.get(kind_of(study, run))
        found[run.name] = Cost(statistics.mean(own), True) if own else Cost(ratio * modelled(study, run), False)
    return found


def order(study: StudySpec, left: Sequence[Job], costs: Mapping[str, Cost]) -> list[Job]:
    """What is left in the order of its work: of what can be begun the cheapest, of equals the first seed."""
    place = {job.name: number for number, job in enumerate(jobs_of(study))}
    waiting = sorted(
        left, key=lambda job: (costs[job.run.name].seconds, job.run.seeds.index(job.seed), place[job.name])
    )
    ordered: list[Job] = []
    while waiting:
        names = {job.name for job in waiting}
        ready = next(job for job in waiting if before(study, job) not in names)
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def before(study: StudySpec, job: Job) -> str | None:
    """The name of the job that must be finished before this one."""
    start = start_of(study, job.run, job.seed)
    return None if start is None else Job(*start).name


def time_left(study: StudySpec, left: Sequence[Job], costs: Mapping[str, Cost], side_by_side: int) -> float:
    """Seconds until all is done, with so many runs at a time; a run and what it waits for come one after the other."""
    seconds = {job.name: costs[job.run.name].seconds for job in left}
    waits_for = {job.name: before(study, job) for job in left}

    def until(name: str | None) -> float:
        return seconds[name] + until(waits_for[name]) if name in seconds else 0.0

    return max([sum(seconds.values()) / side_by_side, *map(until, seconds)])


def duration(seconds: float) -> str:
    """For people: 40 s, 12 min, 3 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
