"""The detector: M&M-3D on volumes and, because a mammogram is a volume with one slice, M&M on mammograms.

Letters in shapes: B breasts, V views (CC, MLO), S slices, N proposals, D channels, I heads; M counts the views that are
present, over all breasts of the batch.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone, folded
from mm3d.model.boxes import from_cxcywh
from mm3d.model.config import EngineName, ModelConfig
from mm3d.model.exported import ExportedBackbone
from mm3d.model.head import CascadeHead, HeadOutput
from mm3d.model.pyramid import pyramid_of
from mm3d.model.scores import mean_logit, noisy_or_logit
from mm3d.shared.errors import InputError

VIEWS = ("CC", "MLO")  # V, in this order
ABSENT_LOGIT = -100.0  # of the proposals of a view that is not there: a score of zero


@dataclass(frozen=True)
class Breasts:
    """A batch of breasts, both views of each padded with air (zeros, right and below) to one size."""

    images: Tensor  # (B, V, S, H, W) grey values from 0 to 1
    sizes: Tensor  # (B, V, 2) height and width before padding, whole pixels
    present: Tensor  # (B, V) bool: which views there are

    def __post_init__(self) -> None:
        if self.images.dim() != 5 or self.images.shape[1] != 2 or not self.images.numel():
            raise InputError(f"Images must be (B, 2, S, H, W), CC and MLO, not {tuple(self.images.shape)}.")
        if self.images.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise InputError(f"Images must be grey values from 0 to 1 as float32, not {self.images.dtype}.")
        B, V = self.images.shape[:2]
        if self.sizes.shape != (B, V, 2) or self.present.shape != (B, V) or self.present.dtype != torch.bool:
            raise InputError(
                f"For {B} breasts, sizes must be ({B}, 2, 2) and present ({B}, 2) of bool, "
                f"not {tuple(self.sizes.shape)} and {tuple(self.present.shape)} of {self.present.dtype}."
            )

        if self.sizes.is_floating_point():
            raise InputError(f"Sizes must be whole pixels, not {self.sizes.dtype}.")
        if self.images.device.type == "cpu":  # where batches are made; on a GPU each look would hold it up
            self._check_views()

    def _check_views(self) -> None:
        """Every present view lies within the batch's size, and is what it is said to be: grey values from 0 to 1."""
        H, W = self.images.shape[3:]
        for (breast, view), (height, width) in zip(
            self.present.nonzero().tolist(), self.sizes[self.present].tolist(), strict=True
        ):
            if not (0 < height <= H and 0 < width <= W):
                raise InputError(
                    f"Breast {breast}, {VIEWS[view]}: its size {height} x {width} (height x width) does not fit into "
                    f"the batch's {H} x {W}."
                )
            low, high = (value.item() for value in self.images[breast, view].aminmax())
            if not (low >= -1 and high <= 2):  # some room for augmentation; NaN fails, too
                raise InputError(
                    f"Breast {breast}, {VIEWS[view]}: grey values go from 0 to 1, not {low:g} to {high:g}."
                )

    def to(self, device: torch.device | str) -> "Breasts":
        return Breasts(self.images.to(device), self.sizes.to(device), self.present.to(device))


@dataclass(frozen=True)
class Detections:
    """What every head says of every proposal; the last head, index -1, is the result. Absent views score zero."""

    logits: Tensor  # (I, B, V, N) malignancy m_i
    boxes: Tensor  # (I, B, V, N, 4) b_i, xyxy in model pixels; may leave the image
    slice_logits: Tensor | None  # (I, B, V, S, N); softmax over S gives w_i; None for fusion "mlp"
    slice_places: Tensor | None  # (I, B, V, N) from 0 (first slice) to S - 1 (last), only of fusion "mlp"
    features: Tensor  # (I, B, V, N, D) fused features h_i
    present: Tensor  # (B, V) bool
    slice_count: int  # S

    @property
    def slice_weights(self) -> Tensor | None:
        """w (I, B, V, S, N): how suspicious each slice is for a proposal, summing to 1 over S."""
        return None if self.slice_logits is None else self.slice_logits.softmax(dim=3)

    @property
    def slices(self) -> Tensor:
        """z (I, B, V, N): the most suspicious slice of every proposal, 0-based."""
        if self.slice_logits is not None:
            return self.slice_logits.argmax(dim=3)
        assert self.slice_places is not None
        return self.slice_places.round().long()

    @property
    def image_logits(self) -> Tensor:
        """(I, B, V): noisy-or of the proposals, as a logit; its sigmoid is the image's score."""
        return noisy_or_logit(self.logits)

    @property
    def breast_logits(self) -> Tensor:
        """(I, B): mean of the image scores over the views that are present, as a logit."""
        return mean_logit(self.image_logits, self.present.expand(self.logits.shape[:-1]))


class Detector(nn.Module):
    """Backbone, learned proposals (h_0, b_0) and a cascade of heads. One set of weights for both views."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.only_for_inference = False
        self.backbone = Backbone(config)
        self.proposal_boxes = nn.Parameter(_start_boxes(config))  # (N, 4) cxcywh as a share of the image
        self.proposal_features = nn.Parameter(torch.randn(config.proposals, config.channels))
        self.heads = nn.ModuleList(CascadeHead(config) for _ in range(config.heads))

    def forward(self, breasts: Breasts) -> Detections:
        present = breasts.present
        if not present.any(dim=1).all():
            raise InputError("Every breast needs at least one view; leave out those that have none.")
        partner = _partners(present)
        views = [
            breasts.images[breast, view, :, :height, :width]  # without the padding
            for (breast, view), (height, width) in zip(
                present.nonzero().tolist(), breasts.sizes[present].tolist(), strict=True
            )
        ]
        pyramid = pyramid_of(self.backbone, views)

        sizes = breasts.sizes[present].to(self.proposal_boxes)  # (M, 2)
        b = from_cxcywh(self.proposal_boxes) * sizes.flip(-1).repeat(1, 2)[:, None]
        h = self.proposal_features.expand(len(views), -1, -1)
        outputs = []
        for head in self.heads:
            output = head(h, b, pyramid, partner)
            outputs.append(output)
            h, b = output.h, output.b.detach()
        return _gather(outputs, present, breasts.images.shape[2])

    def for_inference(self, engine: EngineName = "torch") -> "Detector":
        """A copy with the frozen BatchNorms folded into the convolutions. Same results; not for training or saving.

        engine: what runs the backbone, torch or OpenVINO (the extra mm3d[openvino]; on a CPU only).
        """
        backbone = folded(self.backbone)
        fast = copy.copy(self)
        fast._modules = {
            **self._modules,
            "backbone": ExportedBackbone(backbone) if engine == "openvino" else backbone,
        }
        fast.only_for_inference = True
        return fast.eval()


def _partners(present: Tensor) -> Tensor:
    """For each of the M present views the index, among them, of the breast's other view, or its own if it is alone."""
    index = present.flatten().cumsum(0).view_as(present) - 1  # (B, V) -> 0 .. M - 1
    return torch.where(present.flip(1), index.flip(1), index)[present]


def _gather(outputs: list[HeadOutput], present: Tensor, S: int) -> Detections:
    """Stack the heads and put the M present views at their places in (B, V)."""

    def place(values: list[Tensor], fill: float) -> Tensor:
        stacked = torch.stack(values)  # (I, M, ...)
        full = stacked.new_full((len(values), *present.shape, *stacked.shape[2:]), fill)
        full[:, present] = stacked
        return full

    slice_logits = [o.slice_logits.transpose(1, 2) for o in outputs if o.slice_logits is not None]  # (M, S, N)
    slice_places = [o.slice_place * (S - 1) for o in outputs if o.slice_place is not None]
    return Detections(
        logits=place([o.m for o in outputs], ABSENT_LOGIT),
        boxes=place([o.b for o in outputs], 0.0),
        slice_logits=place(slice_logits, 0.0) if slice_logits else None,
        slice_places=place(slice_places, 0.0) if slice_places else None,
        features=place([o.h for o in outputs], 0.0),
        present=present,
        slice_count=S,
    )


def _start_boxes(config: ModelConfig) -> Tensor:
    """(N, 4) cxcywh: all as large as the image, or a tenth so and the others on a grid with some overlap."""
    boxes = torch.tensor([0.5, 0.5, 1.0, 1.0]).repeat(config.proposals, 1)
    if config.proposal_start == "grid":
        count = config.proposals - config.proposals // 10
        columns = max(1, round(math.sqrt(count / 2)))  # a breast is about twice as high as wide
        rows = math.ceil(count / columns)
        cells = torch.arange(count)
        boxes[:count, 0] = (cells % columns + 0.5) / columns
        boxes[:count, 1] = (cells // columns + 0.5) / rows
        boxes[:count, 2:] = torch.tensor([1.5 / columns, 1.5 / rows]).clamp(max=1)
    return boxes
