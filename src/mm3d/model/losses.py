"""The training loss: M&M's finding-, image- and breast-level terms, and the slice term that M&M-3D adds (Eq. 7).

Which proposal answers for which annotation is the cheapest assignment, for each head and view: `match`.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mm3d.model.boxes import iou_and_giou
from mm3d.model.detector import VIEWS, Detections
from mm3d.shared.errors import InputError

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0


@dataclass(frozen=True)
class Targets:
    """What is known of a batch of B breasts. Only malignant lesions are annotations for the detector: to it, benign
    ones are negatives. Their boxes are here for the map of lesions of the dense stage (`train/dense.py`).

    A view is annotated when all its malignant lesions are annotated. So every view of a negative or benign breast is
    annotated, with an empty list. A view that is not annotated trains by its label alone.
    """

    malignant: Tensor  # (B,) bool: the breast has cancer
    annotated: Tensor  # (B, V) bool: all malignant lesions of the view are annotated
    boxes: Tensor  # (F, 4) the annotations of all views, xyxy in model pixels
    slices: Tensor  # (F,) the most suspicious slice of each, from 0; -1 where it is not known
    places: Tensor  # (F, 2) the breast and the view of each
    benign_boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))  # (G, 4)
    benign_places: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.long))  # (G, 2)

    def __post_init__(self) -> None:
        count = len(self.boxes)
        if self.boxes.shape != (count, 4) or self.slices.shape != (count,) or self.places.shape != (count, 2):
            raise InputError(
                "Annotations need boxes (F, 4), slices (F,) and places (F, 2), with F = 0 where there is none, not "
                f"{tuple(self.boxes.shape)}, {tuple(self.slices.shape)} and {tuple(self.places.shape)}."
            )
        if self.boxes.device.type != "cpu":  # targets are made on the CPU; a GPU would have to wait for each look
            return
        B, V = self.annotated.shape
        for (breast, view), box, z in zip(self.places.tolist(), self.boxes.tolist(), self.slices.tolist(), strict=True):
            if not (0 <= breast < B and 0 <= view < V):
                raise InputError(
                    f"An annotation is in breast {breast}, view {view}, but the batch has {B} breasts of {V} views."
                )
            where = f"An annotation of breast {breast}, {VIEWS[view]},"
            if not self.malignant[breast]:
                raise InputError(
                    f"{where} is in a breast that is not malignant: only malignant annotations are targets."
                )
            if not (box[0] < box[2] and box[1] < box[3]):
                raise InputError(f"{where} has a box without area, {box}: boxes are x1, y1, x2, y2.")
            if z < -1:
                raise InputError(f"{where} is on slice {z}: slices count from 0, and -1 means not annotated.")

    def to(self, device: torch.device | str) -> "Targets":
        return Targets(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    @property
    def image_labels(self) -> Tensor:
        """(B, V) bool: whether the view shows cancer. A view that is not annotated has the label of its breast."""
        shows = torch.zeros_like(self.annotated)
        shows[self.places[:, 0], self.places[:, 1]] = True
        return torch.where(self.annotated, shows, self.malignant[:, None])


@dataclass(frozen=True)
class CostWeights:
    """The weights of class, box distance and overlap, both in matching and in the loss (Sparse R-CNN's 2, 5, 2)."""

    focal: float = 2.0
    """Malignancy of the proposal."""
    l1: float = 5.0
    """Distance of the corners, as a share of the image."""
    giou: float = 2.0
    """Generalised intersection over union."""


@dataclass(frozen=True)
class LossWeights:
    """The weight of each term in the total."""

    finding: CostWeights = field(default_factory=CostWeights)
    """Focal, L1 and GIoU, the finding-level terms."""
    slice: float = 1.0
    """-log w_z of Eq. 7, or the distance of a regressed slice."""
    image: float = 1.0
    """Cross-entropy of the image score."""
    breast: float = 1.0
    """Cross-entropy of the breast score."""
    matches: int = 1
    """How many proposals are matched with each annotation, a setting of training alone. Sparse R-CNN has 1. With 4,
    boxes are learned faster, but a cancer is then found several times and scores rank worse: end with 1."""
    matches_until: float = 1.0
    """After this share of the steps, each annotation is matched with one proposal."""

    def __post_init__(self) -> None:
        if self.matches < 1:
            raise InputError(f"loss.matches = {self.matches} must be at least 1.")
        if not 0 <= self.matches_until <= 1:
            raise InputError(f"loss.matches_until = {self.matches_until} must be from 0 to 1, a share of the steps.")


@dataclass(frozen=True)
class Losses:
    """Every term by name, unweighted, with a value for each head (I,); and their weighted sum over terms and heads."""

    terms: dict[str, Tensor]
    total: Tensor


DEFAULT_WEIGHTS = LossWeights()


def detection_losses(
    detections: Detections, targets: Targets, sizes: Tensor, weights: LossWeights = DEFAULT_WEIGHTS
) -> Losses:
    """All terms of the loss at all heads.

    Finding-level terms are sums over annotations (focal: over proposals), divided by the number of annotations in the
    batch over all ranks. Image and breast terms are means over all ranks. No term is ever skipped: an empty sum is a
    zero that still depends on its inputs. So every parameter has a gradient in every batch, as DDP needs.

    Parameters
    ----------
    detections : Detections
        What the detector returned for the batch.
    targets : Targets
        What is known of the batch.
    sizes : Tensor (B, V, 2)
        The heights and widths of the batch before padding, `Breasts.sizes`.
    weights : LossWeights
        The weight of each term in the total.

    Returns
    -------
    Losses
        `total` to go backward from, and `terms`: focal, l1, giou, slice, image, breast.
    """
    terms = {**_finding_terms(detections, targets, sizes, weights), **_label_terms(detections, targets)}
    factors = {**vars(weights.finding), "slice": weights.slice, "image": weights.image, "breast": weights.breast}
    total = torch.stack([factors[name] * term.sum() for name, term in terms.items()]).sum()
    return Losses(terms, total)


def _finding_terms(detections: Detections, targets: Targets, sizes: Tensor, weights: LossWeights) -> dict[str, Tensor]:
    logits, boxes = detections.logits.float(), detections.boxes.float()
    pairs = _match_all(detections, targets, sizes, weights)
    head, breast, view, proposal, annotation = pairs
    divisor = share_of_ranks(len(targets.boxes) * weights.matches, logits.device)

    def sum_per_head(values: Tensor, head: Tensor) -> Tensor:
        return values.new_zeros(len(logits)).index_add(0, head, values) / divisor

    is_matched = torch.zeros_like(logits)
    is_matched[head, breast, view, proposal] = 1
    counted = detections.present & targets.annotated
    focal = _sigmoid_focal(logits[:, counted], is_matched[:, counted]).sum(dim=(1, 2)) / divisor

    matched, truth = boxes[head, breast, view, proposal], targets.boxes[annotation].to(boxes)
    scale = sizes[breast, view].flip(-1).repeat(1, 2).to(boxes)  # width, height, width, height
    l1 = (matched / scale - truth / scale).abs().sum(dim=-1)
    giou = 1 - iou_and_giou(matched, truth)[1]

    with_slice = pairs[:, targets.slices[annotation] >= 0]
    return {
        "focal": focal,
        "l1": sum_per_head(l1, head),
        "giou": sum_per_head(giou, head),
        "slice": sum_per_head(_slice_term(detections, targets, with_slice), with_slice[0]),
    }


def _slice_term(detections: Detections, targets: Targets, pairs: Tensor) -> Tensor:
    """Eq. 7: -log w_z of each matched proposal. Where there is no w, it is the distance of the regressed slice."""
    head, breast, view, proposal, annotation = pairs
    z = targets.slices[annotation]
    if detections.slice_logits is not None:
        log_w = detections.slice_logits.float().log_softmax(dim=3)
        return -log_w[head, breast, view, z, proposal]
    distance = detections.z[head, breast, view, proposal] - z
    return distance.abs() / max(1, detections.slice_count - 1)


def _label_terms(detections: Detections, targets: Targets) -> dict[str, Tensor]:
    """Image- and breast-level cross-entropy at every head, so a breast that has only a label trains them all."""
    present = detections.present
    pairs = {
        "image": (detections.image_logits[:, present], targets.image_labels[present]),  # (I, M) and (M,)
        "breast": (detections.breast_logits, targets.malignant),  # (I, B) and (B,)
    }
    terms = {}
    for name, (logits, labels) in pairs.items():
        entropy = F.binary_cross_entropy_with_logits(logits, labels.to(logits).expand_as(logits), reduction="none")
        terms[name] = entropy.sum(dim=1) / share_of_ranks(entropy.shape[1], logits.device)
    return terms


def _match_all(detections: Detections, targets: Targets, sizes: Tensor, weights: LossWeights) -> Tensor:
    """Every matched pair of every head: (5, pairs), its head, breast, view, proposal and annotation."""
    S = detections.slice_count
    pairs = [torch.zeros(5, 0, dtype=torch.long, device=detections.logits.device)]
    for breast, view in targets.places.unique(dim=0).tolist():
        if not detections.present[breast, view] or not targets.annotated[breast, view]:
            raise InputError(
                f"Breast {breast} of the batch has an annotation in {VIEWS[view]}, which is absent or not annotated: "
                "leave the annotation out, or mark the view as annotated."
            )
        here = (targets.places == targets.places.new_tensor([breast, view])).all(dim=1).nonzero()[:, 0]
        if (targets.slices[here] >= S).any():
            raise InputError(
                f"Breast {breast} of the batch has an annotation on a slice beyond its last, {S - 1}: "
                "annotations must be given in the prepared volume's slices."
            )
        of_view = detections.logits[:, breast, view], detections.boxes[:, breast, view]
        cost = matching_cost(*of_view, targets.boxes[here], sizes[breast, view], weights.finding)
        head, proposal, annotation = match(cost, weights.matches)
        place = (torch.full_like(head, number) for number in (breast, view))
        pairs.append(torch.stack([head, *place, proposal, here[annotation]]))
    return torch.cat(pairs, dim=1)


def matching_cost(logits: Tensor, boxes: Tensor, truth: Tensor, size: Tensor, weights: CostWeights) -> Tensor:
    """The cost of every proposal for every annotation of one view.

    logits: (..., N), boxes: (..., N, 4), truth: (G, 4) annotated boxes, size: (2,) height and width -> (..., N, G)
    """
    p = logits.float().sigmoid()
    positive = FOCAL_ALPHA * (1 - p) ** FOCAL_GAMMA * -(p + 1e-8).log()
    negative = (1 - FOCAL_ALPHA) * p**FOCAL_GAMMA * -(1 - p + 1e-8).log()
    boxes, truth = boxes.float()[..., :, None, :], truth.float()
    scale = size.flip(-1).repeat(2).float()  # width, height, width, height
    l1 = (boxes / scale - truth / scale).abs().sum(dim=-1)
    giou = iou_and_giou(boxes, truth)[1]
    return weights.focal * (positive - negative)[..., None] + weights.l1 * l1 - weights.giou * giou


def match(cost: Tensor, matches: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Costs of I heads (I, N, G) -> heads, proposals and annotations of the pairs, min(N, G) for each head.

    A proposal answers for one annotation at most. With `matches`, so many proposals answer for an annotation, or fewer
    if there are not enough of them.
    """
    N, G = cost.shape[1], max(1, cost.shape[2])
    cost = cost.repeat(1, 1, max(1, min(matches, N // G)))  # each annotation several times
    # A diverged training has NaN costs. The loss reports that, so the matching only has to survive it.
    numbers = torch.nan_to_num(cost.detach(), nan=1e6, posinf=1e6, neginf=-1e6).cpu().numpy()
    pairs = [linear_sum_assignment(of_head) for of_head in numbers]
    head = np.repeat(np.arange(len(pairs)), [len(proposals) for proposals, _ in pairs])
    proposal, annotation = np.concatenate(pairs, axis=1)
    return tuple(torch.as_tensor(index, device=cost.device) for index in (head, proposal, annotation % G))  # type: ignore[return-value]


def _sigmoid_focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Focal loss of each logit."""
    p = logits.sigmoid()
    p_wrong = p * (1 - labels) + (1 - p) * labels
    alpha = FOCAL_ALPHA * labels + (1 - FOCAL_ALPHA) * (1 - labels)
    return alpha * p_wrong**FOCAL_GAMMA * F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def share_of_ranks(count: int, device: torch.device) -> Tensor:
    """The average of a count over all ranks, from a total of at least 1, because many batches have no annotation.

    A sum divided by it becomes a mean over the batches of all ranks, because DDP averages gradients over the ranks.
    """
    total = torch.tensor(float(count), device=device)
    ranks = 1
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)
        ranks = dist.get_world_size()
    return total.clamp(min=1) / ranks
