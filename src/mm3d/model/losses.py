"""The training loss: M&M's finding-, image- and breast-level terms, and the slice term that M&M-3D adds (Eq. 7)."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mm3d.model.boxes import iou_and_giou
from mm3d.model.detector import VIEWS, Detections
from mm3d.model.matching import FOCAL_ALPHA, FOCAL_GAMMA, CostWeights, match, matching_cost
from mm3d.shared.errors import InputError


@dataclass(frozen=True)
class Targets:
    """What is known of a batch of B breasts. Only malignant findings are findings here: benign ones are negatives.

    A view is annotated when all its malignant findings are listed, so every view of a negative or benign breast is
    annotated, with none. The findings of a view that is not annotated are unknown: it trains by its label alone.
    """

    malignant: Tensor  # (B,) bool: the breast has cancer
    annotated: Tensor  # (B, V) bool
    boxes: Tensor  # (F, 4) the findings of all views, xyxy in model pixels
    slices: Tensor  # (F,) the most suspicious slice of each, 0-based; -1 where it is not annotated
    places: Tensor  # (F, 2) the breast and the view each belongs to

    def __post_init__(self) -> None:
        count = len(self.boxes)
        if self.boxes.shape != (count, 4) or self.slices.shape != (count,) or self.places.shape != (count, 2):
            raise InputError(
                "Findings need boxes (F, 4), slices (F,) and places (F, 2), with F = 0 where there is none, not "
                f"{tuple(self.boxes.shape)}, {tuple(self.slices.shape)} and {tuple(self.places.shape)}."
            )
        if self.boxes.device.type == "cpu":  # where targets are made; on a GPU each look would hold it up
            self._check_findings()

    def _check_findings(self) -> None:
        """Every finding is a box in a malignant breast of the batch."""
        B, V = self.annotated.shape
        for (breast, view), box, z in zip(self.places.tolist(), self.boxes.tolist(), self.slices.tolist(), strict=True):
            if not (0 <= breast < B and 0 <= view < V):
                raise InputError(
                    f"A finding is in breast {breast}, view {view}, but the batch has {B} breasts of {V} views."
                )
            where = f"A finding of breast {breast}, {VIEWS[view]},"
            if not self.malignant[breast]:
                raise InputError(f"{where} is in a breast that is not malignant: only malignant findings are targets.")
            if not (box[0] < box[2] and box[1] < box[3]):
                raise InputError(f"{where} has a box without area, {box}: boxes are x1, y1, x2, y2.")
            if z < -1:
                raise InputError(f"{where} is on slice {z}: slices count from 0, and -1 means not annotated.")

    def to(self, device: torch.device | str) -> "Targets":
        return Targets(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    @property
    def image_labels(self) -> Tensor:
        """(B, V) bool: whether the view shows cancer; where it is not annotated, the breast's label stands for it."""
        found = torch.zeros_like(self.annotated)
        found[self.places[:, 0], self.places[:, 1]] = True
        return torch.where(self.annotated, found, self.malignant[:, None])


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


@dataclass(frozen=True)
class Losses:
    """Every term by name, unweighted, a value per head (I,); and their weighted sum over terms and heads."""

    terms: dict[str, Tensor]
    total: Tensor


DEFAULT_WEIGHTS = LossWeights()


def detection_losses(
    detections: Detections, targets: Targets, sizes: Tensor, weights: LossWeights = DEFAULT_WEIGHTS
) -> Losses:
    """All terms at all heads. sizes: (B, V, 2), the batch's unpadded heights and widths.

    Annotation-level terms are sums over findings (and, focal, over proposals), divided by the number of findings in the
    batch over all ranks; image and breast terms are means over all ranks. No term is ever skipped: with nothing to sum
    it is a zero that still depends on its inputs, so every parameter has a gradient in every batch, as data-parallel
    training needs.
    """
    terms = {**_finding_terms(detections, targets, sizes, weights.finding), **_label_terms(detections, targets)}
    factors = {**vars(weights.finding), "slice": weights.slice, "image": weights.image, "breast": weights.breast}
    total = torch.stack([factors[name] * term.sum() for name, term in terms.items()]).sum()
    return Losses(terms, total)


def _finding_terms(detections: Detections, targets: Targets, sizes: Tensor, weights: CostWeights) -> dict[str, Tensor]:
    logits, boxes = detections.logits.float(), detections.boxes.float()
    head, breast, view, proposal, finding = _matches(detections, targets, sizes, weights)
    normaliser = share_of_ranks(len(targets.boxes), logits.device)

    def per_head(values: Tensor, head: Tensor) -> Tensor:
        return values.new_zeros(len(logits)).index_add(0, head, values) / normaliser

    is_finding = torch.zeros_like(logits)
    is_finding[head, breast, view, proposal] = 1
    counted = detections.present & targets.annotated
    focal = _sigmoid_focal(logits[:, counted], is_finding[:, counted]).sum(dim=(1, 2)) / normaliser

    matched, found = boxes[head, breast, view, proposal], targets.boxes[finding].to(boxes)
    scale = sizes[breast, view].flip(-1).repeat(1, 2).to(boxes)  # width, height, width, height
    l1 = (matched / scale - found / scale).abs().sum(dim=-1)
    giou = 1 - iou_and_giou(matched, found)[1]

    z = targets.slices[finding]
    known = z >= 0
    head_z, breast_z, view_z, proposal_z, z = (index[known] for index in (head, breast, view, proposal, z))
    if detections.slice_logits is not None:
        log_w = detections.slice_logits.float().log_softmax(dim=3)
        slice_term = -log_w[head_z, breast_z, view_z, z, proposal_z]  # Eq. 7
    else:
        assert detections.slice_places is not None
        distance = detections.slice_places[head_z, breast_z, view_z, proposal_z] - z
        slice_term = distance.abs() / max(1, detections.slice_count - 1)
    return {
        "focal": focal,
        "l1": per_head(l1, head),
        "giou": per_head(giou, head),
        "slice": per_head(slice_term, head_z),
    }


def _label_terms(detections: Detections, targets: Targets) -> dict[str, Tensor]:
    """Image- and breast-level cross-entropy, at every head: a breast known only by its label trains them all."""
    present = detections.present
    logits = {"image": detections.image_logits[:, present], "breast": detections.breast_logits}  # (I, M), (I, B)
    labels = {"image": targets.image_labels[present], "breast": targets.malignant}
    terms = {}
    for name in logits:
        wanted = labels[name].to(logits[name]).expand_as(logits[name])
        entropy = F.binary_cross_entropy_with_logits(logits[name], wanted, reduction="none")
        terms[name] = entropy.sum(dim=1) / share_of_ranks(entropy.shape[1], wanted.device)
    return terms


def _matches(
    detections: Detections, targets: Targets, sizes: Tensor, weights: CostWeights
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Every matched pair of every head: its head, breast, view, proposal and finding."""
    S = detections.slice_count
    pairs = [torch.zeros(5, 0, dtype=torch.long, device=detections.logits.device)]
    for breast, view in targets.places.unique(dim=0).tolist():
        if not detections.present[breast, view] or not targets.annotated[breast, view]:
            raise InputError(
                f"Breast {breast} of the batch has a finding in {VIEWS[view]}, which is absent or not annotated: "
                "leave the finding out, or mark the view as annotated."
            )
        here = (targets.places == targets.places.new_tensor([breast, view])).all(dim=1).nonzero()[:, 0]
        if (targets.slices[here] >= S).any():
            raise InputError(
                f"Breast {breast} of the batch has a finding on a slice beyond its last, {S - 1}: "
                "findings must be given in the prepared volume's slices."
            )
        cost = matching_cost(
            detections.logits[:, breast, view],
            detections.boxes[:, breast, view],
            targets.boxes[here],
            sizes[breast, view],
            weights,
        )
        head, proposal, finding = match(cost)
        pairs.append(
            torch.stack([head, torch.full_like(head, breast), torch.full_like(head, view), proposal, here[finding]])
        )
    return torch.cat(pairs, dim=1).unbind(0)  # type: ignore[return-value]


def _sigmoid_focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Focal loss of each logit."""
    p = logits.sigmoid()
    p_wrong = p * (1 - labels) + (1 - p) * labels
    alpha = FOCAL_ALPHA * labels + (1 - FOCAL_ALPHA) * (1 - labels)
    return alpha * p_wrong**FOCAL_GAMMA * F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def share_of_ranks(count: int, device: torch.device) -> Tensor:
    """max(1, count over all ranks) / ranks: what a sum is divided by for a mean over the batches of all ranks, because
    data-parallel training averages over the ranks afterwards.

    At least 1, because batches without any finding are common and their loss would explode.
    """
    total = torch.tensor(float(count), device=device)
    ranks = 1
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)
        ranks = dist.get_world_size()
    return total.clamp(min=1) / ranks
