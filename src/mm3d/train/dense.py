"""The dense start: backbone and FPN learn a map of lesions before the heads learn anything.

Sparse R-CNN's heads see an image through a few boxes. They learn nothing from the features of an untrained backbone. A
map of lesions (as in CenterNet) has a signal at every place. Its 1 x 1 convolution is dropped afterwards, so the
detector gets no parameter more.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mm3d.data.inputs import read_image
from mm3d.model.detector import Detector
from mm3d.model.losses import share_of_ranks
from mm3d.model.roi_align import STRIDES
from mm3d.output.predictions import BreastPrediction
from mm3d.train.data import Batch, TrainingBreast

SIGMAS = 6.0  # a lesion's bump is this many standard deviations wide
PRIOR = 0.01  # start value of the map: lesions are rare


class DenseLearner(nn.Module):
    """Backbone and FPN with a map of lesions on the finest levels; used like `DetectorLearner`."""

    stage = "dense"

    def __init__(self, detector: Detector, levels: int, benign: bool, autocast: bool) -> None:
        super().__init__()
        self.whole = (detector,)  # in a tuple, so that torch does not count its heads among the parameters
        self.backbone = detector.backbone
        self.levels = levels
        self.autocast = autocast
        self.benign = benign
        self.map = nn.Conv2d(detector.config.channels, 1 + benign, 1)  # of cancers; of all lesions
        nn.init.zeros_(self.map.weight)
        assert self.map.bias is not None
        nn.init.constant_(self.map.bias, -math.log(1 / PRIOR - 1))

    @property
    def detector(self) -> Detector:
        return self.whole[0]

    def maps(self, image: Tensor) -> tuple[list[Tensor], Tensor]:
        """The logits (maps, H_l, W_l) of a view (S, H, W) on every learned level: of cancers, then of all lesions.

        The highest value over the slices counts, so that nobody has to know the slice of a lesion. Also returns a zero
        that depends on the unused levels: data-parallel training needs a gradient of every parameter.
        """
        with torch.autocast(image.device.type, torch.bfloat16, enabled=self.autocast):
            levels = self.backbone(image)
            logits = [self.map(level).amax(dim=0) for level in levels[: self.levels]]
        unused = sum((level.sum() for level in levels[self.levels :]), torch.zeros((), device=image.device))
        return [level.float() for level in logits], 0.0 * unused

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """CenterNet's focal loss, divided by the findings over all ranks. Views without annotation do not count."""
        breasts, targets = batch.breasts, batch.targets
        total = breasts.images.new_zeros(())
        count = len(targets.boxes) + self.benign * (len(targets.boxes) + len(targets.benign_boxes))
        for breast, view in breasts.present.nonzero().tolist():
            height, width = breasts.sizes[breast, view].tolist()
            logits, unused = self.maps(breasts.images[breast, view, :, :height, :width])
            malignant = targets.boxes[_is_at(targets.places, breast, view)]
            lesions = torch.cat([malignant, targets.benign_boxes[_is_at(targets.benign_places, breast, view)]])
            counts = targets.annotated[breast, view].to(total)
            for level, stride in zip(logits, STRIDES, strict=False):
                for boxes, logit in zip((malignant, lesions), level, strict=False):
                    total = total + counts * _focal(logit, draw_bumps(boxes / stride, logit.shape)).sum()
            total = total + unused
        total = total / share_of_ranks(count, total.device) / self.levels
        return total, {"map": total}

    def predict(self, breast: TrainingBreast) -> BreastPrediction:
        """A breast's score is the highest logit of its map of cancers. There are no boxes."""
        with torch.inference_mode():
            images = [read_image(view, breast.input, breast.histogram) for view in breast.prepared.views]
            on_device = (torch.from_numpy(image).to(self.map.weight.device) for image in images)
            score = max(float(self.maps(image)[0][0].max()) for image in on_device)
        record = breast.prepared.breast
        return BreastPrediction(record.patient, record.exam, record.laterality, (), score)


def _is_at(places: Tensor, breast: int, view: int) -> Tensor:
    return (places == places.new_tensor([breast, view])).all(dim=1)


def draw_bumps(boxes: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The wanted map (H, W): for each box (G, 4), in the map's pixels, a Gaussian that is 1 at its centre."""
    height, width = shape
    y = torch.arange(height, device=boxes.device) + 0.5
    x = torch.arange(width, device=boxes.device) + 0.5
    wanted = boxes.new_zeros(height, width)
    for x1, y1, x2, y2 in boxes.tolist():
        # The centre is the middle of a pixel, so that one pixel is 1. A small lesion's bump is still some pixels wide.
        cx, cy = math.floor((x1 + x2) / 2) + 0.5, math.floor((y1 + y2) / 2) + 0.5
        sigma_x, sigma_y = max((x2 - x1) / SIGMAS, 0.5), max((y2 - y1) / SIGMAS, 0.5)
        bump = torch.exp(-((y[:, None] - cy) ** 2) / (2 * sigma_y**2) - (x - cx) ** 2 / (2 * sigma_x**2))
        wanted = torch.maximum(wanted, bump)
    return wanted


def _focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """CenterNet's focal loss: at a centre (1 - p)^2 (-log p), elsewhere (1 - wanted)^4 p^2 (-log(1 - p))."""
    p = logits.sigmoid()
    centre = (1 - p) ** 2 * -F.logsigmoid(logits)
    elsewhere = (1 - wanted) ** 4 * p**2 * -F.logsigmoid(-logits)
    return torch.where(wanted == 1, centre, elsewhere)
