"""The dense start: backbone and FPN learn a map of lesions before the heads learn anything.

Sparse R-CNN's heads see an image through a few boxes, and learn nothing from the features of an untrained backbone. A
map of lesions (as in CenterNet) has a signal at every place. Its 1 x 1 convolution is thrown away afterwards: the
network that is left has no parameter more.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mm3d.data.batches import PreparedBreast, read_image
from mm3d.data.inputs import Histogram, InputName
from mm3d.model.detector import Detector
from mm3d.model.losses import share_of_ranks
from mm3d.model.roi_align import STRIDES
from mm3d.train.learners import TOTAL

SIGMAS = 6.0  # a lesion's bump is this many standard deviations wide
PRIOR = 0.01  # start value of the map: lesions are rare


class DenseLearner(nn.Module):
    """Backbone and FPN with a map of lesions on the finest levels; the same inputs as `Learner`."""

    def __init__(self, detector: Detector, levels: int, autocast: bool) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.levels = levels
        self.autocast = autocast
        self.map = nn.Conv2d(detector.config.channels, 1, 1)
        nn.init.zeros_(self.map.weight)
        assert self.map.bias is not None
        nn.init.constant_(self.map.bias, -math.log(1 / PRIOR - 1))

    def maps(self, image: Tensor) -> tuple[list[Tensor], Tensor]:
        """Of one view (S, H, W): logits (H_l, W_l) of every learned level, over slices the highest, so that nobody has
        to know the slice of a lesion; and a zero that depends on the levels that are not used, which data-parallel
        training needs."""
        with torch.autocast(image.device.type, torch.bfloat16, enabled=self.autocast):
            levels = self.backbone(image)
            logits = [self.map(level)[:, 0].amax(dim=0) for level in levels[: self.levels]]
        unused = sum((level.sum() for level in levels[self.levels :]), torch.zeros((), device=image.device))
        return [level.float() for level in logits], 0.0 * unused

    def forward(
        self,
        images: Tensor,
        sizes: Tensor,
        present: Tensor,
        malignant: Tensor,  # noqa: ARG002
        annotated: Tensor,
        boxes: Tensor,
        slices: Tensor,  # noqa: ARG002
        places: Tensor,
    ) -> dict[str, Tensor]:
        """CenterNet's focal loss, divided by the findings over all ranks. Views that nobody annotated do not count."""
        total = images.new_zeros(())
        for breast, view in present.nonzero().tolist():
            height, width = sizes[breast, view].tolist()
            logits, unused = self.maps(images[breast, view, :, :height, :width])
            here = boxes[(places == places.new_tensor([breast, view])).all(dim=1)]
            counts = annotated[breast, view].to(total)
            for level, stride in zip(logits, STRIDES, strict=False):
                total = total + counts * _focal(level, bumps(here / stride, level.shape)).sum()
            total = total + unused
        total = total / share_of_ranks(len(boxes), images.device) / self.levels
        return {TOTAL: total, "map": total.detach()}


def bumps(boxes: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The map that is wanted (H, W): for each box (G, 4), in the map's pixels, a Gaussian that is 1 at its centre."""
    height, width = shape
    y = torch.arange(height, device=boxes.device) + 0.5
    x = torch.arange(width, device=boxes.device) + 0.5
    wanted = boxes.new_zeros(height, width)
    for x1, y1, x2, y2 in boxes.tolist():
        # The centre is a pixel's, so that one pixel is 1; a small lesion's bump is still some pixels wide.
        cx, cy = math.floor((x1 + x2) / 2) + 0.5, math.floor((y1 + y2) / 2) + 0.5
        across, down = max((x2 - x1) / SIGMAS, 0.5), max((y2 - y1) / SIGMAS, 0.5)
        bump = torch.exp(-((y[:, None] - cy) ** 2) / (2 * down**2) - (x - cx) ** 2 / (2 * across**2))
        wanted = torch.maximum(wanted, bump)
    return wanted


def _focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """CenterNet's: at a centre (1 - p)^2 (-log p), elsewhere (1 - wanted)^4 p^2 (-log(1 - p))."""
    p = logits.sigmoid()
    centre = (1 - p) ** 2 * -F.logsigmoid(logits)
    elsewhere = (1 - wanted) ** 4 * p**2 * -F.logsigmoid(-logits)
    return torch.where(wanted == 1, centre, elsewhere)


def highest_of(learner: DenseLearner, prepared: PreparedBreast, name: InputName, histogram: Histogram | None) -> float:
    """The highest logit of a breast's maps: a score to validate the dense stage with."""
    device = learner.map.weight.device
    with torch.inference_mode():
        return max(
            float(learner.maps(torch.from_numpy(read_image(view, name, histogram)).to(device))[0][0].max())
            for view in prepared.views
        )
