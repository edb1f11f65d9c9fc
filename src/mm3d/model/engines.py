"""The backbone for inference: torch with folded BatchNorms, or OpenVINO. Same weights and results, less time."""

import copy
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from mm3d.model.backbone import Backbone, FrozenBatchNorm2d
from mm3d.shared.errors import InputError

EXAMPLE = (1, 128, 96)  # slices, height and width that OpenVINO's graph is recorded with; it takes any size


def fold_batch_norms(backbone: Backbone) -> Backbone:
    """A copy with each frozen BatchNorm folded into the convolution before it, and ReLUs in place.

    The copy gives the same output and shares the tensors that do not change.
    """
    tensors = [*backbone.parameters(), *backbone.buffers()]
    backbone = copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})
    for module in backbone.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
        norm = getattr(module, "normalization", None)
        if isinstance(norm, FrozenBatchNorm2d):
            conv = module.convolution
            assert isinstance(conv, nn.Conv2d)
            conv.weight, conv.bias = fuse_conv_bn_weights(
                conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            module.normalization = nn.Identity()
    return backbone


class OpenVINOBackbone(Backbone):
    """A backbone whose stages OpenVINO computes, on as many threads as torch has.

    The memory of the result is OpenVINO's, so a result is valid only until the next call.
    """

    def __init__(self, backbone: Backbone) -> None:
        nn.Module.__init__(self)
        if backbone.config.backbone.family != "resnet":
            raise InputError("The engine openvino runs ResNet backbones only; use the engine torch for this model.")
        self.config, self.output = backbone.config, backbone.output
        self.request = _compile(_ChannelsLast(backbone)).create_infer_request()

    def merge_stages(self, slices: Tensor) -> list[Tensor]:
        if slices.device.type != "cpu":
            raise InputError("The engine openvino runs on the CPU only; keep the model and its images there.")
        levels = self.request.infer([slices.float().contiguous().numpy()], share_inputs=True, share_outputs=True)
        return [torch.from_numpy(levels[i]).permute(0, 3, 1, 2) for i in range(4)]


class _ChannelsLast(nn.Module):
    """The merged stages with the channels last, which is how RoIAlign reads them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, slices: Tensor) -> tuple[Tensor, ...]:
        return tuple(level.permute(0, 2, 3, 1) for level in self.backbone.merge_stages(slices))


def _compile(module: nn.Module) -> Any:
    # OpenVINO reports over the internet that it is imported and what it converts. A hospital does not want that.
    # OpenVINO does not report if this package is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        from openvino import Core
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
    except ImportError as error:
        raise InputError(
            "The engine openvino is not installed; install it with: pip install 'mm3d[openvino]'."
        ) from error
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # recording warns that it leaves out checks of shapes
        logging.set_verbosity_error()  # recording asks the backbone for its loss, which it does not have
        try:
            frontend = FrontEndManager().load_by_framework("pytorch")
            decoder = TorchScriptPythonDecoder(module.eval(), example_input=torch.rand(EXAMPLE))
            model = frontend.convert(frontend.load(decoder))
        finally:
            logging.set_verbosity(verbosity)
    model.reshape([-1, -1, -1])
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    return Core().compile_model(model, "CPU", settings)
