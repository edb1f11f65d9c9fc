"""What a training step costs: waiting for data, and a volume against its slices."""

import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from timing import Row, seconds_of_each

from mm3d.data.inputs import prepared_breasts
from mm3d.model import depthwise, weights
from mm3d.model.backbone import Backbone
from mm3d.model.config import BACKBONES, PRESETS, ModelConfig
from mm3d.model.detector import Breasts, Detector
from mm3d.model.losses import LossWeights, Targets
from mm3d.phantom.run import PREPARED, make_trial
from mm3d.phantom.trial import Trial
from mm3d.predict.detect import load_model
from mm3d.train.config import AugmentConfig, CohortConfig, DataConfig, LoopConfig, OptimiserConfig, TrainConfig
from mm3d.train.data import Batch, TrainingBreast, read_batches
from mm3d.train.run import DetectorLearner
from mm3d.train.state import make_optimiser

BREASTS, BATCH, STEPS = 12, 4, 24
# All that ffdm.toml does, and what is slow.
AUGMENT = AugmentConfig(shift=0.05, gamma=0.3, rotate=5.0, scale=0.05, noise=0.02)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_trial(Trial(seed=1, breasts=BREASTS, scale="mini"), folder, PREPARED["mini"], 1)
        flat = [TrainingBreast(breast, "ffdm") for breast in prepared_breasts(folder, None, "FFDM")]
        deep = [TrainingBreast(breast, "volume") for breast in prepared_breasts(folder, None, "DBT")]
        speeds = [_speed("mammograms", flat), _speed("volumes, S = 8", deep)]
    return [*speeds, _volume_against_slices(), _depths(), _depthwise(), *_films()]


class Trainer:
    """The detector and its optimiser, a step at a time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.learner = DetectorLearner(Detector(PRESETS["mini"]), LossWeights(), autocast=False)
        self.optimiser = make_optimiser(self.learner, OptimiserConfig())

    def step(self, batch: Batch) -> None:
        self.optimiser.zero_grad()
        total, _ = self.learner(batch)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimiser.step()

    def steps(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.step(batch)


def _speed(what: str, breasts: list[TrainingBreast]) -> Row:
    trainer = Trainer()
    data = DataConfig((CohortConfig(Path("unused")),), sampling="natural")
    batches = read_batches(breasts, TrainConfig(data, augment=AUGMENT, loop=LoopConfig(batch=BATCH)))
    trainer.step(next(batches))
    waited, start = 0.0, time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        trainer.step(batch)
    seconds = time.perf_counter() - start
    batches.close()
    return Row(
        f"Training at mini scale, {what}, batches of {BATCH} breasts: share of the time waiting for data",
        f"{waited / seconds:.1%}",
        "below 5%",
        f"{STEPS / seconds:.2f} steps per second, with all augmentations",
    )


def _volume_against_slices() -> Row:
    """On one breast of 16 slices; the same targets."""
    trainer = Trainer()
    volume = _volume(16)
    slices = [_breast(volume.breasts.images[:, :, s : s + 1], z=0) for s in range(16)]
    together, alone = seconds_of_each(partial(trainer.steps, [volume]), partial(trainer.steps, slices), rounds=3)
    return Row(
        "A training step on S = 16 against 16 steps on one slice (preset mini, 192 x 96, both views)",
        f"{together / alone:.2f} of the time",
        "reported",
    )


def _depths() -> Row:
    """The depths of the study."""
    trainer = Trainer()
    shallow, *deeper = seconds_of_each(*(partial(trainer.steps, [_volume(S)]) for S in (8, 16, 32)), rounds=3)
    return Row(
        "A training step on 16 and on 32 slices against one on 8 (preset mini, 192 x 96, both views)",
        " and ".join(f"{seconds / shallow:.1f}" for seconds in deeper) + " times as long",
        "reported",
    )


def _depthwise() -> Row:
    """Two films through an EfficientNet-Lite0."""
    backbone = Backbone(ModelConfig(backbone=BACKBONES["efficientnet_lite0"], channels=128))
    films = torch.rand(2, 512, 320)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            levels = backbone(films)
        sum(level.float().square().mean() for level in levels).backward()

    def usual_step() -> None:
        with mock.patch.object(depthwise, "is_slow", return_value=False):
            step()

    ours, usual = seconds_of_each(step, usual_step, rounds=3)
    return Row(
        "EfficientNet-Lite0 and its pyramid, forward and backward in bfloat16, 512 x 320: gradients of depthwise "
        "convolutions by other convolutions against torch's own",
        f"{ours / usual:.2f} of the time",
        "reported",
    )


def _films() -> list[Row]:
    """A breast of two films, on one core."""
    path = weights.find("mammo")
    size = weights.read_header(path).provenance["prepare"]
    height, width = size["length"], size["width"]
    batch = _breast(torch.rand(1, 2, 1, height, width), z=0)
    learners = [DetectorLearner(weights.load(path), LossWeights(), autocast) for autocast in (False, True)]
    models = [load_model(path, precision=precision) for precision in ("float32", "bfloat16")]

    def step(learner: DetectorLearner) -> None:
        learner(batch)[0].backward()

    def look(model: Detector) -> None:
        with torch.inference_mode():
            model(batch.breasts)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    training = seconds_of_each(*(partial(step, one) for one in learners), rounds=3, clock=time.process_time)
    looking = seconds_of_each(*(partial(look, one) for one in models), rounds=3, clock=time.process_time)
    torch.set_num_threads(threads)
    return [
        Row(
            f"Weights mammo, seconds of one core for a film of {height} x {width}, {what}",
            f"{seconds[0] / 2:.2f} s",
            "reported",
            f"in float32; in bfloat16 {seconds[1] / 2:.2f} s",
        )
        for what, seconds in (("prediction", looking), ("forward and backward", training))
    ]


def _volume(S: int) -> Batch:
    """One breast of random pixels."""
    return _breast(torch.rand(1, 2, S, 192, 96, generator=torch.Generator().manual_seed(0)), z=5)


def _breast(images: torch.Tensor, z: int) -> Batch:
    size = torch.tensor(images.shape[-2:])
    breasts = Breasts(images, size.expand(1, 2, 2), torch.ones(1, 2, dtype=torch.bool))
    targets = Targets(
        malignant=torch.tensor([True]),
        annotated=torch.ones(1, 2, dtype=torch.bool),
        boxes=torch.tensor([[20.0, 40.0, 40.0, 60.0]] * 2),
        slices=torch.tensor([z, z]),
        places=torch.tensor([[0, 0], [0, 1]]),
    )
    return Batch(0, ("one",), breasts, targets)
