"""The backbone in int8: a graph of OpenVINO whose convolutions are computed with whole numbers of 8 bits.

`model/quantize.py` makes it of a trained backbone. A weights file holds it as two tensors of bytes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone
from mm3d.shared.errors import InputError

GRAPH, CONSTANTS = "backbone.graph", "backbone.constants"  # the names of the two tensors in a weights file
LARGEST_GRAPH = 16_000_000  # bytes; that of a ResNet-50 has 0.75 million, of a ResNet-101 twice as many
ONLY_OPENVINO = "These weights are int8 and run on the engine openvino only; use it, or the float32 weights."
DAMAGED = "The int8 backbone of these weights is damaged; make the file again with 'mm3d quantize'."
# What the graph of a quantised ResNet with FPN consists of. A file that asks for anything else is not run.
OPERATIONS = {
    *("Parameter", "Constant", "Result"),
    *("Convolution", "GroupConvolution", "MaxPool", "Relu", "FakeQuantize", "MVN", "GroupNormalization", "Interpolate"),
    *("Add", "Subtract", "Multiply", "Divide", "Power", "Sqrt", "Convert"),
    *("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Concat", "Split", "VariadicSplit", "Slice", "StridedSlice"),
    *("ShapeOf", "Gather", "Broadcast", "Range", "ReduceProd"),
}


class Int8Backbone(Backbone):
    """A backbone whose body and lateral convolutions are a graph of OpenVINO.

    FPN's output convolutions stay in torch and float32, because at full size they come after RoIAlign (memory.py).

    Parameters
    ----------
    backbone : Backbone
        The one in float32. Its configuration and its output convolutions are kept.
    graph, constants : Tensor (bytes,) of uint8
        OpenVINO's description of the graph (XML), and the numbers that it refers to.
    """

    graph: Tensor
    constants: Tensor

    def __init__(self, backbone: Backbone, graph: Tensor, constants: Tensor) -> None:
        nn.Module.__init__(self)
        # Whole numbers need less room than the floats that they stand for.
        room = 4 * sum(parameter.numel() for parameter in backbone.parameters())
        sizes_fit = 0 < graph.numel() <= LARGEST_GRAPH and 0 < constants.numel() <= room
        are_bytes = all(tensor.dtype == torch.uint8 and tensor.dim() == 1 for tensor in (graph, constants))
        if not (sizes_fit and are_bytes):
            raise InputError(DAMAGED)
        self.config, self.output = backbone.config, backbone.output
        self.register_buffer("graph", graph)
        self.register_buffer("constants", constants)

    def merge_stages(self, slices: Tensor) -> list[Tensor]:  # noqa: ARG002
        raise InputError(ONLY_OPENVINO)

    def read(self, core: Any) -> Any:
        """The graph as OpenVINO's model. Nothing of it runs before its operations, input and outputs are checked."""
        from openvino import Tensor as Numbers

        text = self.graph.numpy().tobytes()
        if not text.startswith(b"<?xml"):  # OpenVINO would also try other formats
            raise InputError(DAMAGED)
        try:
            model = core.read_model(text, Numbers(self.constants.numpy()))
        except RuntimeError as error:
            raise InputError(DAMAGED) from error
        unknown = {node.get_type_name() for node in model.get_ops()} - OPERATIONS
        ranks = [port.partial_shape.rank.get_length() for port in (*model.inputs, *model.outputs)]
        channels = [port.partial_shape[3].get_length() for port in model.outputs if ranks == [3, 4, 4, 4, 4]]
        if unknown or channels != 4 * [self.config.channels]:
            raise InputError(DAMAGED)
        return model
