"""What a training can be told. docs/training.md is for users; examples are in mm3d/configs."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mm3d.data.inputs import InputName
from mm3d.model.config import BACKBONES, PRESETS, ModelConfig
from mm3d.model.losses import LossWeights
from mm3d.model.weights import find, read_header
from mm3d.shared.config import check, from_dict, to_dict
from mm3d.shared.errors import InputError

SHIPPED = Path(__file__).parent.parent / "configs"
RANDOM, DENSE = "random", "dense"  # values of `start` that are not paths


def _between(config: Any, low: float, high: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high:
            limits = f"at least {low:g}" if high == float("inf") else f"from {low:g} to {high:g}"
            raise InputError(f"{name} = {value} must be {limits}.")


@dataclass(frozen=True)
class CohortConfig:
    """Prepared breasts to train or validate on."""

    folder: Path
    """A prepared folder."""
    split: str | None = None
    """Only this part of it, such as train; not given: all."""
    input: InputName = "volume"
    """What the model is given of each view: volume, slices, mip, hm, msp or ffdm."""
    mammograms: Path | None = None
    """For input hm: a prepared folder; the average histogram of its mammograms (of the same split, if it has splits) is
    what projections are matched to. With start weights that carry one, not needed."""
    suspicion: Path | None = None
    """For input msp: weights of the detector of slices that says which slice is most suspicious."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class DataConfig:
    """Which breasts, how many of them, in which order."""

    train: tuple[CohortConfig, ...]
    """Cohorts to train on, one or more, each with its own input: mammograms and volumes may be mixed."""
    validation: tuple[CohortConfig, ...] = ()
    """Cohorts to validate on; the figures are over all of them. None: no validation, and the last weights count."""
    fraction: float = 1.0
    """Share of the training breasts that is used, by label, and nested: the breasts of 0.1 are among those of 0.4."""
    annotated_fraction: float = 1.0
    """Share of the annotated malignant breasts that keep their boxes; the others keep image and label. Nested."""
    drop_unannotated_malignant: bool = False
    """Leave out malignant breasts without boxes, as the starred methods of the paper do."""
    seed: int = 0
    """Of the choice that fractions make; apart from the training's seed, so that seeds compare on the same breasts."""
    sampling: Literal["balanced", "natural"] = "balanced"
    """balanced: malignant and other breasts in turn, each kind in its own shuffled order, as many in an epoch as there
    are breasts. natural: every breast once in an epoch."""
    workers: int = 1
    """Threads that read and augment ahead of the training; any number gives the same batches."""

    def __post_init__(self) -> None:
        check(self)
        if not self.train:
            raise InputError("data.train has no cohort; add a [[data.train]] with a folder.")
        _between(self, 0, 1, "fraction", "annotated_fraction")
        _between(self, 1, 64, "workers")


@dataclass(frozen=True)
class AugmentConfig:
    """Random changes of a breast's images, the same for all slices of a volume; boxes move along."""

    horizontal_flip: float = 0.5
    """How often both views are mirrored left to right (the paper flips both ways)."""
    vertical_flip: float = 0.5
    """How often both views are mirrored top to bottom."""
    shift: float = 0.0
    """Greatest shift, as a share of height and width, in each direction. What leaves the image is lost."""
    rotate: float = 0.0
    """Greatest rotation in degrees, either way."""
    scale: float = 0.0
    """Greatest change of size: 0.1 is from 0.9 to 1.1."""
    gamma: float = 0.0
    """Greatest change of contrast: grey values to the power of a number from 1 / (1 + gamma) to 1 + gamma."""
    noise: float = 0.0
    """Greatest standard deviation of noise added inside the breast, in grey values from 0 to 1."""

    def __post_init__(self) -> None:
        check(self)
        _between(self, 0, 1, "horizontal_flip", "vertical_flip", "noise")
        _between(self, 0, 0.5, "shift", "scale")
        _between(self, 0, 180, "rotate")
        _between(self, 0, 4, "gamma")


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW and its learning rate. The defaults are the paper's, for starting from trained weights."""

    learning_rate: float = 2.5e-5
    """The highest; about 5e-4 from scratch at mini scale."""
    backbone_factor: float = 1.0
    """Times that for backbone and FPN: below 1 where they are trained already and the heads are not."""
    weight_decay: float = 1e-4
    """AdamW's."""
    clip: float = 1.0
    """Greatest norm of all gradients together; larger ones are scaled down. 0: no limit."""
    schedule: Literal["cosine", "step", "constant"] = "constant"
    """After warm-up: down to `final` on half a cosine, a tenth at 2/3 and a hundredth at 8/9 of the steps, or none."""
    warmup: int = 0
    """Steps in which the rate rises from 0, linearly."""
    final: float = 0.01
    """What the cosine ends at, as a share of the learning rate."""
    ema: float = 0.0
    """Decay of an average of the weights over the steps, such as 0.999; it is what is validated and saved. 0: none."""

    def __post_init__(self) -> None:
        check(self)
        _between(self, 0, float("inf"), "learning_rate", "backbone_factor", "weight_decay", "clip", "warmup")
        _between(self, 0, 1, "final")
        _between(self, 0, 0.999999, "ema")


@dataclass(frozen=True)
class LoopConfig:
    """How long, how many at a time, on what."""

    steps: int = 20_000
    """Updates of the weights in all. Steps, not epochs: a tenth of the data still trains as long."""
    batch: int = 4
    """Breasts in a batch, over all devices."""
    accumulate: int = 1
    """Batches whose gradients are averaged for one step."""
    seed: int = 0
    """Of start values, order and augmentation."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: the network under autocast, the loss in float32. Slower on most CPUs."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    devices: int = 1
    """Processes on this machine, each with its own GPU or CPU threads; the batch is shared among them."""
    threads: int = 0
    """CPU threads of each process; 0: all cores, shared by the processes. 1 where other programs use the cores."""
    save_every: int = 200
    """Steps between checkpoints: what a killed run can lose."""
    log_every: int = 20
    """Steps between lines of log.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard's files, too (pip install tensorboard)."""

    def __post_init__(self) -> None:
        check(self)
        _between(self, 1, float("inf"), "steps", "batch", "accumulate", "devices", "save_every", "log_every")
        _between(self, 0, 2**32 - 1, "seed")
        _between(self, 0, 1024, "threads")


@dataclass(frozen=True)
class ValidateConfig:
    """When to validate, and what decides which weights are the best."""

    every: int = 500
    """Steps between validations; the last step is always one."""
    metric: Literal["recall", "auc", "auc_max", "mean"] = "mean"
    """recall: R@0.25 in 2D. auc: of breasts by the model's own score. auc_max: by the highest proposal. mean: of recall
    and auc."""
    patience: int = 0
    """Stop after this many validations without a better one. 0: never."""

    def __post_init__(self) -> None:
        check(self)
        _between(self, 1, float("inf"), "every")
        _between(self, 0, float("inf"), "patience")


@dataclass(frozen=True)
class DenseConfig:
    """The stage before the training with start = "dense": a map of lesions, learned by backbone and FPN alone."""

    steps: int = 1500
    """Updates of the weights."""
    batch: int = 8
    """Breasts in a batch, over all devices."""
    learning_rate: float = 1e-3
    """The highest; warm-up and a cosine as in the training."""
    warmup: int = 50
    """Steps in which the rate rises from 0."""
    levels: int = 1
    """How many levels of the pyramid learn a map, from the finest (p2) on."""

    def __post_init__(self) -> None:
        check(self)
        _between(self, 1, float("inf"), "steps", "batch")
        _between(self, 0, float("inf"), "learning_rate", "warmup")
        _between(self, 1, 4, "levels")


@dataclass(frozen=True)
class TrainConfig:
    """One training."""

    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    """In a file: the settings of a model, over those of `preset` (tiny, mini, paper), or of the start weights if no
    preset is given; backbone may be a name (small, resnet18, resnet50, resnet101, pvt_v2_b2_li)."""
    start: str = RANDOM
    """random; dense, which trains backbone and FPN on a map of lesions first; or a weights file or run folder."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    loss: LossWeights = field(default_factory=LossWeights)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)


def read_config(path: Path, overrides: Sequence[str] = (), start: str | None = None) -> TrainConfig:
    """A configuration file (.toml, or the .json of a run folder) with the command line's settings over it.

    A bare name that is no file here means the one that comes with mm3d.
    """
    if not path.is_file() and path.name == str(path) and (SHIPPED / path).is_file():
        path = SHIPPED / path
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in SHIPPED.glob("*.toml")))
        raise InputError(f"{path} does not exist; give a configuration, or one of those that come with mm3d: {known}.")
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not {path.suffix[1:].upper()} ({error}); mend it.") from error
    for key, value in parse_overrides(overrides):
        _put(settings, key, value)
    if start is not None:
        settings["start"] = start
    return config_of(settings, str(path))


def config_of(settings: dict[str, Any], where: str) -> TrainConfig:
    """Settings as plain data, as in a file, made a configuration."""
    start = settings.get("start", RANDOM)
    if isinstance(start, str) and start not in (RANDOM, DENSE):
        settings = settings | {"start": str(find(start))}
        read_header(settings["start"])  # weights that are not there are said before anything is read
    no_model = "model" not in settings and start in (RANDOM, DENSE)
    if isinstance(settings.get("model", {}), dict):
        settings = settings | {
            "model": _model_settings(settings.get("model", {}), settings.get("start", RANDOM), where)
        }
    config = from_dict(TrainConfig, settings, where)
    if no_model:
        raise InputError(
            f"{where} has no [model], and there are no start weights that would bring one; "
            "give --start WEIGHTS, or a model such as --model.preset mini."
        )
    return config


def _model_settings(given: dict[str, Any], start: Any, where: str) -> dict[str, Any]:
    """The whole of [model]: the preset's or the start weights' settings, and over them what is given."""
    given = dict(given)
    preset = given.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise InputError(f"{where}: 'model': preset must be one of {', '.join(PRESETS)}, not {preset!r}.")
    base = PRESETS[preset or "paper"]
    if preset is None and isinstance(start, str) and start not in (RANDOM, DENSE):
        base = read_header(start).config
    backbone = given.get("backbone")
    if isinstance(backbone, str):
        if backbone not in BACKBONES:
            raise InputError(f"{where}: 'model': backbone must be one of {', '.join(BACKBONES)}, not {backbone!r}.")
        given["backbone"] = to_dict(BACKBONES[backbone])
    return to_dict(base) | given


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """`--section.key value` or `--section.key=value`, as many as there are; a value is TOML, or else a plain word."""
    pairs = []
    waiting = list(arguments)
    while waiting:
        name = waiting.pop(0)
        if not name.startswith("--") or len(name) < 3:
            raise InputError(f"{name!r} is not a setting; write --section.key value.")
        name, equals, text = name[2:].partition("=")
        if not equals:
            if not waiting:
                raise InputError(f"--{name} has no value; write --{name} value.")
            text = waiting.pop(0)
        pairs.append((name, _value(text)))
    return pairs


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a word, such as a path


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set `section.key`; a number in between counts the tables of a list, as in data.train.0.folder."""
    *sections, last = key.split(".")
    place: Any = settings
    for i, section in enumerate(sections):
        if isinstance(place, list):
            if not section.isdecimal() or int(section) >= len(place):
                raise InputError(f"--{key}: {'.'.join(sections[:i])} is a list of {len(place)}; say which, from 0.")
            place = place[int(section)]
        elif isinstance(place, dict):
            place = place.setdefault(section, {})
        else:
            break
    if not isinstance(place, dict):
        raise InputError(f"--{key}: {'.'.join(sections)} is not a table of settings.")
    place[last] = value
