"""From views to the pyramid that RoIs are pooled from, in the memory there is.

A full-size slice (2200 x 1100) has a pyramid of 206 MB, and a ResNet-50 keeps 4.3 GB to go back through it. So there
are two ways to the same numbers. Plain training keeps all that the backward pass needs. Inference, and training with
`recompute`, keep nothing of a slice but its pyramid:

    forward    slices go through the backbone a few at a time, their pyramids into one table; heads pool from it
    backward   each head leaves the gradient of its RoI features, 30 MB a slice for all six. When the last has, a few
               slices at a time go through the backbone again, this time with what the way back needs; all heads' RoIs
               are pooled again from their pyramid, and the gradients go back through it. One slice's activations and
               one slice's pyramid gradient exist at a time, however many slices there are.

The pyramids are kept for all heads, not computed again for each: six heads would pay six backbones instead of two.

Without a graph, FPN's output convolutions need not run where no RoI looks: see `roi_align.Pyramid.outputs`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mm3d.model.backbone import Backbone
from mm3d.model.roi_align import POSITIONS, Pyramid, level_shapes, roi_align, table_of

PIXELS_AT_ONCE = 2_500_000  # one full-size slice: about 0.7 GB in work in a ResNet-50


def pyramid_of(backbone: Backbone, views: list[Tensor]) -> Pyramid:
    """The pyramids of M views (S, H, W), each of its own size.

    Views of one size go together. None is padded, so neither GroupNorm nor PVT's pooling, which look at the whole
    image, can let a breast's result depend on the others in its batch.
    """
    groups: dict[torch.Size, list[int]] = {}
    for m, view in enumerate(views):
        groups.setdefault(view.shape[1:], []).append(m)
    order = [m for members in groups.values() for m in members]
    grouped = [[views[m] for m in members] for members in groups.values()]
    sizes = [views[m].shape[1:] for m in order]
    watch = None
    if torch.is_grad_enabled() and not backbone.config.recompute:
        table, outputs, dtype = torch.cat([_with_graph(backbone, same) for same in grouped]), None, None
    else:
        outputs = backbone.output if _pooled_first(backbone, sizes) else None
        with torch.no_grad():
            table, dtype = _without_graph(backbone, grouped, outputs is not None)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in backbone.parameters()):
            watch = _watch(backbone, views, outputs is not None)
    back = torch.tensor(order, device=table.device).argsort()
    of_groups = Pyramid.of(table, sizes)
    return Pyramid(table, of_groups.shapes[back], of_groups.first_row[back], outputs, dtype, watch)


def _pooled_first(backbone: Backbone, sizes: list[torch.Size]) -> bool:
    """Whether the output convolutions have less to do after RoIAlign, on the RoIs of all heads, than before it."""
    rows = sum(height * width for size in sizes for height, width in level_shapes(size))
    return rows > len(sizes) * backbone.config.heads * backbone.config.proposals * POSITIONS


def _levels(backbone: Backbone, slices: Tensor, pooled_first: bool) -> list[Tensor]:
    return backbone.merged(slices) if pooled_first else backbone(slices)


def _at_once(backbone: Backbone, view: Tensor) -> int:
    return backbone.config.chunk or max(1, PIXELS_AT_ONCE // (view.shape[1] * view.shape[2]))


def _with_graph(backbone: Backbone, views: list[Tensor]) -> Tensor:
    """The table of views of one size, with all that a backward pass needs."""
    return table_of([level.unflatten(0, (len(views), -1)) for level in backbone(torch.cat(views))])


def _without_graph(backbone: Backbone, groups: list[list[Tensor]], pooled_first: bool) -> tuple[Tensor, torch.dtype]:
    """The table of groups of views of one size, and the type it was computed in. Every slice goes straight to its
    place: there is no room for a second copy."""
    counts = [sum(height * width for height, width in level_shapes(views[0].shape[1:])) for views in groups]
    rows = sum(len(views) * count for views, count in zip(groups, counts, strict=True))
    table, dtype, first = torch.empty(0), torch.float32, 0
    for views, count in zip(groups, counts, strict=True):
        slices = [one for view in views for one in view]
        S, size = len(views[0]), _at_once(backbone, views[0])
        for done in range(0, len(slices), size):
            levels = _levels(backbone, torch.stack(slices[done : done + size]), pooled_first)
            if not table.numel():
                dtype = levels[0].dtype
                kept = torch.bfloat16 if backbone.config.pyramid == "bfloat16" else dtype
                table = levels[0].new_empty(rows, S, backbone.config.channels, dtype=kept)
            for i in range(len(levels[0])):
                view, s = divmod(done + i, S)
                start = first + view * count
                for level in levels:
                    end = start + level[i, 0].numel()
                    table[start:end, s] = level[i].flatten(1).T
                    start = end
            del level, levels  # or they would stay while the next slices need the room
        first += len(views) * count
    return table, dtype


def _watch(backbone: Backbone, views: list[Tensor], pooled_first: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """What ties RoI features, pooled from a table without a graph, to the backbone's parameters."""
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    later = _Later(backbone, parameters, views, pooled_first)
    token = _Backbone.apply(later, *parameters)
    return lambda features, boxes: _RoIs.apply(token, features, later, boxes)


class _Later:
    """The gradients of RoI features, until all heads' are there; then the backbone's."""

    def __init__(
        self, backbone: Backbone, parameters: list[torch.nn.Parameter], views: list[Tensor], pooled_first: bool
    ) -> None:
        self.backbone, self.parameters, self.views, self.pooled_first = backbone, parameters, views, pooled_first
        self.device = views[0].device.type
        self.autocast = torch.is_autocast_enabled(self.device)
        self.autocast_dtype = torch.get_autocast_dtype(self.device)
        self.heads: list[tuple[Tensor, Tensor]] = []  # boxes (M, N, 4) and gradient (M, N, K, S, D) of each

    def parameter_gradients(self) -> list[Tensor]:
        """Of all that the heads left here, which is gone afterwards."""
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        for few, boxes, gradient in self._work():
            # Autocast anew for every few slices: it keeps casts of the weights, and with them the graph they are of.
            with torch.enable_grad(), torch.autocast(self.device, self.autocast_dtype, enabled=self.autocast):
                levels = _levels(self.backbone, few, self.pooled_first)
                table = table_of([level[None] for level in levels])
                pyramid = Pyramid.of(table, [few.shape[1:]], self.backbone.output if self.pooled_first else None)
                features = roi_align(pyramid, boxes, self.backbone.config.canonical_box)
            del levels, table, pyramid
            found = torch.autograd.grad(features, self.parameters, gradient.to(features.dtype), allow_unused=True)
            for whole, part in zip(total, found, strict=True):
                if part is not None:
                    whole += part
        return total

    def _work(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """A few slices of a view, with the boxes of all heads (1, I * N, 4) and the gradient of their features."""
        heads, self.heads = self.heads, []
        for m, view in enumerate(self.views):
            boxes = torch.cat([boxes[m : m + 1] for boxes, _ in heads], dim=1)
            size = _at_once(self.backbone, view)
            for s in range(0, len(view), size):
                gradient = torch.cat([gradient[m : m + 1, :, :, s : s + size] for _, gradient in heads], dim=1)
                yield view[s : s + size], boxes, gradient


class _Backbone(torch.autograd.Function):
    """Stands for the backbone in the graph. Autograd comes here when all heads' RoI features have had their gradient.

    The parameters are its inputs and get their gradients by the usual way, once a step: accumulation and data-parallel
    training (DDP's hooks) do not notice.
    """

    @staticmethod
    def forward(ctx: Any, later: _Later, *parameters: Tensor) -> Tensor:
        ctx.later = later
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.later.parameter_gradients()


class _RoIs(torch.autograd.Function):
    """RoI features as they are; their gradient is left for later."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, features: Tensor, later: _Later, boxes: Tensor) -> Tensor:  # noqa: ARG004
        ctx.left = later, boxes
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        later, boxes = ctx.left
        later.heads.append((boxes, gradients[0]))
        return gradients[0].new_zeros((), dtype=torch.float32), None, None, None
