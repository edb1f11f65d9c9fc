"""The settings of a training. docs/training.md explains them to users; mm3d/configs has examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from mm3d.data.inputs import InputName
from mm3d.model.config import BACKBONES, PRESETS, ModelConfig, PrecisionName
from mm3d.model.losses import LossWeights
from mm3d.model.weights import find, has_only_body, read_header
from mm3d.shared.config import check, from_dict, is_deep, parse_json, parse_toml, show, to_dict
from mm3d.shared.errors import InputError

CONFIGS = Path(__file__).parent.parent / "configs"
RANDOM, DENSE = "random", "dense"  # values of `start` that are not paths
OF_BODY = ("backbone", "pixel_mean", "pixel_std")  # settings of a model that the body of a backbone decides


class Range(NamedTuple):
    """The smallest and the largest value that a setting may have."""

    low: float
    high: float = math.inf


Share = Annotated[float, Range(0, 1)]
AtLeastOne = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]


class Section:
    """A part of the configuration. It checks types and ranges of its settings when it is made."""

    def __post_init__(self) -> None:
        check(self)
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            for low, high in getattr(hint, "__metadata__", ()):
                if not low <= value <= high:
                    allowed = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
                    raise InputError(f"{name} = {value} must be {allowed}.")


@dataclass(frozen=True)
class CohortConfig(Section):
    """Prepared breasts to train or validate on."""

    folder: Path
    """A prepared folder."""
    split: str | None = None
    """Use only this split of it, such as train. Not given: all."""
    input: InputName = "volume"
    """What the model is given of each view: volume, slices, mip, hm, msp or ffdm."""
    mammograms: Path | None = None
    """For input hm: a prepared folder with mammograms. Projections are matched to their average histogram (of the same
    split, if it has splits). Not needed if the start weights carry a histogram."""
    suspicion: Path | None = None
    """For input msp: weights of a detector of slices, which decides which slice is the most suspicious."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which breasts, how many of them, in which order."""

    train: tuple[CohortConfig, ...]
    """Cohorts to train on, one or more, each with its own input: mammograms and volumes may be mixed."""
    validation: tuple[CohortConfig, ...] = ()
    """Cohorts to validate on, all of them together. None: no validation, and the last weights count."""
    fraction: Share = 1.0
    """Share of the training breasts that is used, by label, and nested: the breasts of 0.1 are among those of 0.4."""
    annotated_fraction: Share = 1.0
    """Share of the annotated malignant breasts that keep their boxes; the others keep image and label. Nested."""
    drop_unannotated_malignant: bool = False
    """Leave out malignant breasts without boxes, as the starred methods of the paper do."""
    seed: int = 0
    """Seed of the choice that fractions make. It is not the training's seed, so that seeds compare on equal breasts."""
    sampling: Literal["balanced", "natural"] = "balanced"
    """balanced: malignant and other breasts take turns, each kind in its own shuffled order; an epoch has as many draws
    as there are breasts. natural: every breast once in an epoch."""
    workers: Annotated[int, Range(1, 64)] = 1
    """Threads that read and augment ahead of the training. Any number gives the same batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise InputError("data.train has no cohort; add a [[data.train]] with a folder.")


@dataclass(frozen=True)
class AugmentConfig(Section):
    """Random changes of a breast's images, the same for all slices of a volume. Boxes move along."""

    horizontal_flip: Share = 0.5
    """How often both views are mirrored left to right (the paper flips both ways)."""
    vertical_flip: Share = 0.5
    """How often both views are mirrored top to bottom."""
    shift: Annotated[float, Range(0, 0.5)] = 0.0
    """Greatest shift, as a share of height and width, in each direction. What leaves the image is lost."""
    rotate: Annotated[float, Range(0, 180)] = 0.0
    """Greatest rotation in degrees, either way."""
    scale: Annotated[float, Range(0, 0.5)] = 0.0
    """Greatest change of size: 0.1 means from 0.9 to 1.1."""
    gamma: Annotated[float, Range(0, 4)] = 0.0
    """Greatest change of contrast: grey values to the power of a number from 1 / (1 + gamma) to 1 + gamma."""
    noise: Share = 0.0
    """Greatest standard deviation of noise added inside the breast, in grey values from 0 to 1."""


@dataclass(frozen=True)
class OptimiserConfig(Section):
    """AdamW and its learning rate. The defaults are the paper's, for starting from trained weights."""

    learning_rate: NotNegative = 2.5e-5
    """The highest learning rate. From scratch at mini scale, use about 5e-4."""
    backbone_factor: NotNegative = 1.0
    """Backbone and FPN learn at this times the rate: below 1 where they are trained already and the heads are not."""
    body_factor: NotNegative = 1.0
    """The body of the backbone, without FPN, learns at this times that rate, in the dense stage, too: below 1 where it
    comes from ImageNet and FPN is new."""
    new_factor: NotNegative = 1.0
    """Heads and fusions that the start weights do not have, and which therefore start at random, learn at this times
    the rate. Without start weights it is not used."""
    freeze: Annotated[int, Range(0, 4)] = 0
    """This many stages of the backbone, counted from the image, stay as the start weights have them. It saves time."""
    weight_decay: NotNegative = 1e-4
    """AdamW's weight decay."""
    clip: NotNegative = 1.0
    """Greatest norm of all gradients together; larger ones are scaled down. 0: no limit."""
    schedule: Literal["cosine", "step", "constant"] = "constant"
    """After warm-up. cosine: half a cosine down to `final`. step: a tenth at 2/3, a hundredth at 8/9 of the steps."""
    warmup: Annotated[int, Range(0)] = 0
    """Steps in which the rate rises linearly from 0."""
    final: Share = 0.01
    """Where the cosine ends, as a share of the learning rate."""
    ema: Annotated[float, Range(0, 0.999999)] = 0.0
    """Decay of a moving average of the weights, such as 0.999; the average is validated and saved. 0: no average."""


@dataclass(frozen=True)
class LoopConfig(Section):
    """How many steps, how large a batch, on which devices."""

    steps: AtLeastOne = 20_000
    """Updates of the weights in all. Steps, not epochs: a tenth of the data still trains as long."""
    batch: AtLeastOne = 4
    """Breasts in a batch, over all devices."""
    accumulate: AtLeastOne = 1
    """Batches whose gradients are averaged for one step."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed of start values, order and augmentation."""
    precision: PrecisionName = "float32"
    """bfloat16: the network runs under autocast, the loss in float32. It is slower on CPUs without AVX512_BF16 or AMX.
    auto is float32."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    devices: AtLeastOne = 1
    """Processes on this machine, each with its own GPU or CPU threads. They share the batch."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads of each process. 0: all cores, shared by the processes. Use 1 where other programs need the cores."""
    save_every: AtLeastOne = 200
    """Steps between checkpoints: a killed run loses at most these."""
    log_every: AtLeastOne = 20
    """Steps between lines of log.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard's files (pip install tensorboard)."""
    loggers: tuple[Literal["mlflow", "wandb"], ...] = ()
    """Also log to these (pip install 'mm3d[loggers]'): MLflow, into the run's `mlflow.db` or to MLFLOW_TRACKING_URI;
    Weights & Biases, offline into its folder `wandb`, unless WANDB_MODE is online."""


@dataclass(frozen=True)
class ValidateConfig(Section):
    """When to validate, and which figure decides which weights are the best."""

    every: AtLeastOne = 500
    """Steps between validations. The last step is always validated."""
    metric: Literal["recall", "auc", "auc_max", "mean"] = "mean"
    """recall: R@0.25 in 2D. auc: of breasts by the model's own score. auc_max: by the highest proposal. mean: of recall
    and auc."""
    patience: Annotated[int, Range(0)] = 0
    """Stop after this many validations without a better one. 0: never."""


@dataclass(frozen=True)
class DenseConfig(Section):
    """The stage before the training: only backbone and FPN learn, from a map of lesions."""

    first: bool = False
    """Whether start weights, too, go through this stage first. start = "dense" does so from random weights."""
    steps: AtLeastOne = 1500
    """Updates of the weights."""
    batch: AtLeastOne = 8
    """Breasts in a batch, over all devices."""
    learning_rate: NotNegative = 1e-3
    """The highest learning rate. After warm-up it follows a cosine."""
    backbone_factor: NotNegative = 1.0
    """Backbone and FPN learn at this times the rate: below 1 where they are trained already and the map is not."""
    warmup: Annotated[int, Range(0)] = 50
    """Steps in which the rate rises linearly from 0."""
    levels: Annotated[int, Range(1, 4)] = 1
    """How many levels of the pyramid learn a map, from the finest (p2) on."""
    benign: bool = False
    """Learn a second map, of benign and malignant lesions alike: more examples of what a lesion is. A benign breast
    without annotations counts as one without lesions."""


@dataclass(frozen=True)
class TrainConfig:
    """One training."""

    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    """In a file: settings of the model that differ from those of `preset` (tiny, mini, paper), or, without a preset,
    from those of the start weights. backbone may be a name (BACKBONES has them)."""
    start: str = RANDOM
    """random; dense, which first trains backbone and FPN on a map of lesions; or a weights file or run folder. If the
    file has only the body of a backbone, the rest of the model is that of [model], and random."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    loss: LossWeights = field(default_factory=LossWeights)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)

    @property
    def dense_first(self) -> bool:
        """Whether the dense stage comes first."""
        return self.start == DENSE or self.dense.first

    @property
    def start_weights(self) -> str | None:
        """The weights file to start from, if there is one."""
        return None if self.start in (RANDOM, DENSE) else self.start


def read_config(path: Path, overrides: Sequence[str] = (), start: str | None = None) -> TrainConfig:
    """Read a configuration file (.toml, or the .json of a run folder); settings of the command line go over it.

    A name that is no file here means one of the configurations that come with mm3d.
    """
    if not path.is_file() and path.name == str(path) and (CONFIGS / path).is_file():
        path = CONFIGS / path
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in CONFIGS.glob("*.toml")))
        raise InputError(f"{path} does not exist; give a configuration, or one of those that come with mm3d: {known}.")
    try:
        text = path.read_text(encoding="utf-8")
        settings = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path} is not {path.suffix[1:].upper()} ({error}); correct it.") from error
    if not isinstance(settings, dict) or is_deep(settings):
        raise InputError(f"{path} is not a table of settings, or is nested too deep; correct it.")
    for key, value in parse_overrides(overrides):
        _set(settings, key, value)
    if start is not None:
        settings["start"] = start
    return make_config(settings, str(path))


def make_config(given: dict[str, Any], where: str) -> TrainConfig:
    """Make a configuration of plain settings, as a file has them. `where` names the file in messages."""
    settings, start, model = dict(given), given.get("start", RANDOM), given.get("model", {})
    base, only_body = None, False
    if isinstance(start, str) and start not in (RANDOM, DENSE):
        settings["start"] = str(find(start))
        base = read_header(settings["start"]).config  # missing weights are reported before anything else is read
        only_body = has_only_body(settings["start"])
    if isinstance(model, dict):
        settings["model"] = _model_settings(model, base, only_body, where)
    config = from_dict(TrainConfig, settings, where)
    if "model" not in given and base is None:
        raise InputError(
            f"{where} has no [model], and there are no start weights to take one from; "
            "give --start WEIGHTS, or a model such as --model.preset mini."
        )
    return config


def _model_settings(given: dict[str, Any], base: ModelConfig | None, only_body: bool, where: str) -> dict[str, Any]:
    """The complete [model]: what is given, over the settings of the preset or of the start weights, `base`.

    If these have only the body of a backbone, they say nothing about the rest of the model, which is the preset's.
    """
    preset, backbone = given.get("preset"), given.get("backbone")
    for name, value, known in (("preset", preset, PRESETS), ("backbone", backbone, BACKBONES)):
        is_own = name == "backbone" and isinstance(value, dict)
        if value is not None and not is_own and value not in list(known):
            raise InputError(f"{where}: 'model': {name} must be one of {', '.join(known)}, not {show(value)}.")
    of_body = {name: to_dict(base)[name] for name in OF_BODY} if base is not None and only_body else {}
    if preset is not None or base is None:
        base = PRESETS[preset or "paper"]
    settings = to_dict(base) | of_body | given
    settings.pop("preset", None)
    if isinstance(backbone, str):
        settings["backbone"] = to_dict(BACKBONES[backbone])
    return settings


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse `--section.key value` and `--section.key=value`. A value is TOML, or else a plain word."""
    pairs = []
    words = iter(arguments)
    for name in words:
        if not name.startswith("--") or len(name) < 3:
            raise InputError(f"{name!r} is not a setting; write --section.key value.")
        key, equals, given = name[2:].partition("=")
        text = given if equals else next(words, None)
        if text is None:
            raise InputError(f"--{key} has no value; write --{key} value.")
        try:
            pairs.append((key, parse_toml(f"value = {text}")["value"]))
        except ValueError:
            pairs.append((key, text))  # a word, such as a path
    return pairs


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set `section.key`. A number in between counts the tables of a list, as in data.train.0.folder."""
    *sections, last = key.split(".")
    place: Any = settings
    for i, section in enumerate(sections):
        if isinstance(place, list):
            if not section.isdecimal() or int(section) >= len(place):
                raise InputError(f"--{key}: {'.'.join(sections[:i])} is a list of {len(place)}; count them from 0.")
            place = place[int(section)]
        elif isinstance(place, dict):
            place = place.setdefault(section, {})
        else:
            break
    if not isinstance(place, dict):
        raise InputError(f"--{key}: {'.'.join(sections)} is not a table of settings.")
    place[last] = value
