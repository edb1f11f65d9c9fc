"""ONNX files: the backbone, or the whole detector for views of one size with a fixed number of slices.

They are for other runtimes. `mm3d predict` does not read them: what comes before (the preparation of the views) and
after (non-maximum suppression) is not in them. docs/python.md says how they are used.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone
from mm3d.model.boxes import from_cxcywh
from mm3d.model.detector import Detector
from mm3d.model.engines import fold_batch_norms
from mm3d.model.head import CascadeHead
from mm3d.model.int8 import Int8Backbone
from mm3d.model.roi_align import build_pyramid
from mm3d.model.scores import noisy_or_logit
from mm3d.shared.errors import InputError
from mm3d.shared.files import working_folder

OPSET = 20
OUTPUTS = ("logits", "boxes", "slice_weights", "slices", "image_logits")  # slice_weights not with the fusion "mlp"
LEVELS = ("p2", "p3", "p4", "p5")


class _Stages(nn.Module):
    """slices (S, H, W) -> p2 to p5, (S, D, H / 4, W / 4) and so on."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, slices: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(slices))


class _Whole(nn.Module):
    """`Detector.forward` for M views of one breast that are all there and have one size; the last head's output."""

    def __init__(self, detector: Detector, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.heads = backbone, detector.heads
        self.features, self.start = detector.proposal_features, detector.proposal_boxes

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        M, _, H, W = images.shape
        pyramid = build_pyramid(self.backbone, list(images.unbind(0)))
        partner = torch.arange(M - 1, -1, -1)  # of CC it is MLO, of MLO it is CC, and of a single view itself
        h = self.features.expand(M, -1, -1)
        b = (from_cxcywh(self.start) * torch.tensor([W, H, W, H])).expand(M, -1, -1)
        for head in self.heads:
            assert isinstance(head, CascadeHead)
            proposals = head(h, b, pyramid, partner)
            h, b = proposals.h, proposals.b
        weights = [] if proposals.log_w is None else [proposals.log_w.softmax(dim=-1).transpose(1, 2)]
        return proposals.m, b, *weights, proposals.z, noisy_or_logit(proposals.m)


def export_onnx(
    detector: Detector,
    path: Path,
    height: int,
    width: int,
    slices: int,
    views: Literal[1, 2] = 2,
    part: Literal["detector", "backbone"] = "detector",
) -> Sequence[str]:
    """Write an ONNX file (opset 20).

    Parameters
    ----------
    detector : on the CPU; not an int8 one.
    path : the .onnx file; weights above 2 GB would need a second one, which is not written.
    height, width, slices : of the prepared views. All sizes are fixed.
    views : 2: CC and MLO, which look at each other; 1: a view alone.
    part : the whole detector, or only its backbone with the feature pyramid, for the slices of one view.

    Returns
    -------
    The names of the outputs. The detector's input is `images` (views, slices, height, width), grey values from 0 to 1;
    its outputs are logits (views, N), boxes (views, N, 4) in pixels, slice_weights (views, slices, N), slices (views,
    N) and image_logits (views). The backbone's input is `slices` (slices, height, width), its outputs are p2 to p5.
    """
    if isinstance(detector.backbone, Int8Backbone):
        raise InputError("int8 weights hold a graph of OpenVINO; export the weights that they were made from.")
    backbone = fold_batch_norms(detector.backbone)
    if part == "backbone":
        module: nn.Module = _Stages(backbone)
        image, given, names = torch.rand(slices, height, width), "slices", list(LEVELS)
    else:
        module = _Whole(detector, backbone)
        image, given = torch.rand(views, slices, height, width), "images"
        names = [name for name in OUTPUTS if name != "slice_weights" or detector.config.fusion != "mlp"]
    try:
        import onnxscript  # noqa: F401 (torch needs it, and does not say so clearly)
    except ImportError as error:
        raise InputError("ONNX files need onnxscript; install it: pip install 'mm3d[onnx]'.") from error
    module.eval()
    with working_folder(path.parent) as work, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        exported = torch.onnx.export(
            module, (image,), dynamo=True, opset_version=OPSET, input_names=[given], output_names=names, verbose=False
        )
        assert exported is not None
        exported.save(work / path.name)
        (work / path.name).replace(path)
    return names
