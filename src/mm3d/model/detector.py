"""The detector: M&M-3D on volumes and, because a mammogram is a volume with one slice, M&M on mammograms.

Letters in shapes: B breasts, V views (CC, MLO), S slices, N proposals, D channels, I heads; M counts the views that are
present, over all breasts of the batch.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone
from mm3d.model.boxes import from_cxcywh
from mm3d.model.config import EngineName, ModelConfig, PrecisionName
from mm3d.model.engines import OpenVINOBackbone, avoid_broken_amx, fold_batch_norms, round_to_bfloat16
from mm3d.model.head import CascadeHead, Proposals
from mm3d.model.int8 import ONLY_OPENVINO, Int8Backbone
from mm3d.model.memory import build_pyramid
from mm3d.model.scores import mean_logit, noisy_or_logit
from mm3d.shared.errors import InputError

avoid_broken_amx()  # before the first matrix multiplication

VIEWS = ("CC", "MLO")  # V, in this order
ABSENT_LOGIT = -100.0  # of the proposals of a view that is absent: a score of zero


@dataclass(frozen=True)
class Breasts:
    """A batch of breasts with two views each, CC and MLO.

    All views are padded with air (zeros, right and below) to one size.

    Parameters
    ----------
    images : Tensor (B, V, S, H, W)
        Grey values from 0 to 1. A mammogram has S = 1.
    sizes : Tensor (B, V, 2)
        Height and width of each view before padding, in whole pixels.
    present : Tensor (B, V) of bool
        Which views there are. What stands in the place of an absent view is never read.
    """

    images: Tensor
    sizes: Tensor
    present: Tensor

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
        if self.images.device.type != "cpu":  # batches are made on the CPU; a GPU would have to wait for each look
            return
        H, W = self.images.shape[3:]
        for breast, view in self.present.nonzero().tolist():
            where = f"Breast {breast}, {VIEWS[view]}:"
            height, width = self.sizes[breast, view].tolist()
            if not (0 < height <= H and 0 < width <= W):
                size = f"{height} x {width} (height x width)"
                raise InputError(f"{where} its size {size} does not fit into the batch's {H} x {W}.")
            low, high = (value.item() for value in self.images[breast, view].aminmax())
            if not (low >= -1 and high <= 2):  # leaves room for augmentation; NaN fails, too
                raise InputError(f"{where} grey values go from 0 to 1, not {low:g} to {high:g}.")

    def to(self, device: torch.device | str) -> "Breasts":
        return Breasts(self.images.to(device), self.sizes.to(device), self.present.to(device))


@dataclass(frozen=True)
class Detections:
    """The proposals of all I heads. The last head, index -1, is the result. Proposals of absent views score zero.

    Attributes
    ----------
    logits : Tensor (I, B, V, N)
        Malignancy m of each proposal. Its sigmoid is the score.
    boxes : Tensor (I, B, V, N, 4)
        Boxes b, xyxy in model pixels. They may leave the image.
    slice_logits : Tensor (I, B, V, S, N) or None
        Their softmax over S is w. None with the fusion "mlp", which has no w.
    z : Tensor (I, B, V, N)
        The most suspicious slice, from 0 to S - 1. With the fusion "mlp" it is regressed and not a whole number.
    features : Tensor (I, B, V, N, D)
        Fused features h.
    present : Tensor (B, V) of bool
        Which views there are.
    slice_count : int
        S.
    """

    logits: Tensor
    boxes: Tensor
    slice_logits: Tensor | None
    z: Tensor
    features: Tensor
    present: Tensor
    slice_count: int

    @property
    def slice_weights(self) -> Tensor | None:
        """w (I, B, V, S, N): how suspicious each slice is for a proposal, summing to 1 over S."""
        return None if self.slice_logits is None else self.slice_logits.softmax(dim=3)

    @property
    def slices(self) -> Tensor:
        """The most suspicious slice of every proposal (I, B, V, N), as a whole number from 0."""
        return self.z.round().long()

    @property
    def image_logits(self) -> Tensor:
        """(I, B, V): noisy-or of the proposals, as a logit; its sigmoid is the image's score."""
        return noisy_or_logit(self.logits)

    @property
    def breast_logits(self) -> Tensor:
        """(I, B): mean of the image scores over the views that are present, as a logit."""
        return mean_logit(self.image_logits, self.present.expand(self.logits.shape[:-1]))


class Detector(nn.Module):
    """M&M-3D: a backbone, learned proposals (h_0, b_0) and a cascade of heads, with one set of weights for both views.

    Parameters
    ----------
    config : ModelConfig
        The settings of the model. `PRESETS` has complete ones.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.only_for_inference = False
        self.in_bfloat16 = False  # in inference; a training has its own autocast
        self.backbone = Backbone(config)
        self.proposal_boxes = nn.Parameter(_make_start_boxes(config))  # (N, 4) cxcywh as a share of the image
        self.proposal_features = nn.Parameter(torch.randn(config.proposals, config.channels))
        self.heads = nn.ModuleList(CascadeHead(config) for _ in range(config.heads))

    def forward(self, breasts: Breasts) -> Detections:
        """Detect in a batch of breasts, each with at least one view."""
        if self.in_bfloat16:
            with torch.autocast(breasts.images.device.type, torch.bfloat16):
                return self._detect(breasts)
        return self._detect(breasts)

    def _detect(self, breasts: Breasts) -> Detections:
        present = breasts.present
        if not present.any(dim=1).all():
            raise InputError("Every breast needs at least one view; leave out those that have none.")
        places, sizes = present.nonzero().tolist(), breasts.sizes[present]  # of the M views
        views = [
            breasts.images[breast, view, :, :height, :width]  # without the padding
            for (breast, view), (height, width) in zip(places, sizes.tolist(), strict=True)
        ]
        pyramid = build_pyramid(self.backbone, views)
        partner = _find_partners(present)

        h = self.proposal_features.expand(len(views), -1, -1)  # h_0
        b = from_cxcywh(self.proposal_boxes) * sizes.to(self.proposal_boxes).flip(-1).repeat(1, 2)[:, None]  # b_0
        cascade = []
        for head in self.heads:
            proposals = head(h, b, pyramid, partner)
            cascade.append(proposals)
            h, b = proposals.h, proposals.b.detach()
        return _gather(cascade, present, breasts.images.shape[2])

    def for_inference(self, engine: EngineName = "torch", precision: PrecisionName = "auto") -> "Detector":
        """A faster copy, which cannot be trained or saved. In float32 it has the same results.

        Parameters
        ----------
        engine : {"torch", "openvino"}
            What runs the backbone. OpenVINO needs the extra mm3d[openvino] and runs on a CPU only.
        precision : {"auto", "float32", "bfloat16"}
            What the network computes in; boxes stay in float32. "auto" is float32, whose results do not depend on the
            processor.

        Returns
        -------
        Detector
            In evaluation mode, with frozen BatchNorms folded into the convolutions.
        """
        if isinstance(self.backbone, Int8Backbone) and engine != "openvino":
            raise InputError(ONLY_OPENVINO)
        backbone, in_bfloat16 = fold_batch_norms(self.backbone), precision == "bfloat16"
        if engine == "openvino":
            backbone = OpenVINOBackbone(backbone, in_bfloat16)
        elif in_bfloat16:
            backbone = round_to_bfloat16(backbone)
        fast = copy.copy(self)
        fast._modules = {**self._modules, "backbone": backbone}
        fast.only_for_inference, fast.in_bfloat16 = True, in_bfloat16
        return fast.eval()


def _find_partners(present: Tensor) -> Tensor:
    """For each of the M present views the index of the breast's other view, or its own index if that is absent."""
    index = present.flatten().cumsum(0).view_as(present) - 1  # (B, V) -> 0 .. M - 1
    return torch.where(present.flip(1), index.flip(1), index)[present]


def _gather(cascade: list[Proposals], present: Tensor, S: int) -> Detections:
    """Stack the heads and put the M present views at their places in (B, V)."""

    def place(values: list[Tensor], fill: float = 0.0) -> Tensor:
        stacked = torch.stack(values)  # (I, M, ...)
        full = stacked.new_full((len(values), *present.shape, *stacked.shape[2:]), fill)
        full[:, present] = stacked
        return full

    slice_logits = [head.log_w.transpose(1, 2) for head in cascade if head.log_w is not None]  # (M, S, N)
    return Detections(
        logits=place([head.m for head in cascade], ABSENT_LOGIT),
        boxes=place([head.b for head in cascade]),
        slice_logits=place(slice_logits) if slice_logits else None,
        z=place([head.z for head in cascade]),
        features=place([head.h for head in cascade]),
        present=present,
        slice_count=S,
    )


def _make_start_boxes(config: ModelConfig) -> Tensor:
    """(N, 4) cxcywh: all as large as the image; or only a tenth of them, and the others on a grid with some overlap.

    A training fits them to its boxes, if it is asked to (`train/start_boxes.py`).
    """
    boxes = torch.tensor([0.5, 0.5, 1.0, 1.0]).repeat(config.proposals, 1)
    if config.proposal_start != "image":
        count = config.proposals - config.proposals // 10
        columns = max(1, round(math.sqrt(count / 2)))  # a breast is about twice as high as wide
        rows = math.ceil(count / columns)
        cells = torch.arange(count)
        boxes[:count, 0] = (cells % columns + 0.5) / columns
        boxes[:count, 1] = (cells // columns + 0.5) / rows
        boxes[:count, 2:] = torch.tensor([1.5 / columns, 1.5 / rows]).clamp(max=1)
    return boxes
