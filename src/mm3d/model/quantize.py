"""Post-training quantisation of the backbone with NNCF, for the engine openvino."""

import copy
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mm3d.model.detector import Detector
from mm3d.model.engines import fold_batch_norms, load_core, record
from mm3d.model.int8 import Int8Backbone
from mm3d.shared.errors import InputError

Place = TypeVar("Place")


def quantize(model: Detector, places: Sequence[Place], read: Callable[[Place], NDArray[np.float32]]) -> Detector:
    """A copy of a detector whose backbone is int8. It can be saved, and run with `for_inference("openvino")`.

    Parameters
    ----------
    model : Detector
        As it was loaded, not a copy for inference.
    places, read : sequence and function
        `read` gives the slice (H, W) at a place. The grey values that the network meets there set the ranges of its
        whole numbers.

    Returns
    -------
    Detector
        Its heads are those of `model`.
    """
    load_core()  # before NNCF, which would report to its makers otherwise
    try:
        import nncf
        from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix
    except ImportError as error:
        raise InputError("Quantisation needs NNCF; install it with: pip install 'mm3d[int8]'.") from error
    nncf.set_log_level(logging.ERROR)
    graph = record(fold_batch_norms(model.backbone))
    quantised = nncf.quantize(
        graph,
        nncf.Dataset(places, lambda place: read(place)[None]),
        subset_size=len(places),
        preset=nncf.QuantizationPreset.MIXED,  # what comes before a ReLU has a sign, what comes after it has none
        ignored_scope=nncf.IgnoredScope(names=_find_merged_levels(graph), validate=False),
        # Half the range for weights: processors without VNNI add products in 16 bits, which would overflow.
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE),
    )
    fast = copy.copy(model)
    fast._modules = {**model._modules, "backbone": Int8Backbone(model.backbone, *_serialise(quantised))}
    return fast.eval()


def _find_merged_levels(graph: Any) -> list[str]:
    """The sums that make FPN's levels, and what they are made of. They stay in float32.

    With their ranges in 8 bits, three of the four levels of a ResNet-50 were wrong. The sums take almost no time.
    """
    names: list[str] = []
    for node in graph.get_ordered_ops():
        sources = {port.get_source_output().get_node().get_friendly_name() for port in node.inputs()}
        if node.get_type_name() == "Interpolate" or sources & set(names):
            names.append(node.get_friendly_name())
    return names


def _serialise(graph: Any) -> list[torch.Tensor]:
    """The graph's XML and its constants as bytes."""
    from openvino import save_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.xml"
        save_model(graph, path, compress_to_fp16=False)
        return [torch.from_numpy(np.fromfile(file, np.uint8)) for file in (path, path.with_suffix(".bin"))]
