"""The backbone as an OpenVINO model, for inference on CPUs: the same weights and results, sooner."""

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone
from mm3d.shared.errors import InputError

EXAMPLE = (1, 128, 96)  # slices, height, width that the graph is recorded with; it takes any


class ExportedBackbone(Backbone):
    """A backbone whose `merged` OpenVINO computes, on as many threads as torch has. What it returns holds until the
    next call: the memory is OpenVINO's."""

    def __init__(self, backbone: Backbone) -> None:
        nn.Module.__init__(self)
        if backbone.config.backbone.family != "resnet":
            raise InputError("The engine openvino runs ResNet backbones only; use the engine torch for this model.")
        self.config, self.output = backbone.config, backbone.output
        self.request = _compiled(_Recorded(backbone)).create_infer_request()

    def merged(self, slices: Tensor) -> list[Tensor]:
        if slices.device.type != "cpu":
            raise InputError("The engine openvino runs on the CPU only; keep the model and its images there.")
        found = self.request.infer([slices.float().contiguous().numpy()], share_inputs=True, share_outputs=True)
        return [torch.from_numpy(found[i]).permute(0, 3, 1, 2) for i in range(4)]


class _Recorded(nn.Module):
    """p2 to p5 with the channels last, which is how they are wanted afterwards."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, slices: Tensor) -> tuple[Tensor, ...]:
        return tuple(level.permute(0, 2, 3, 1) for level in self.backbone.merged(slices))


def _compiled(module: nn.Module) -> Any:
    # OpenVINO tells its makers over the internet that it is imported and what it converts. Not from a hospital: without
    # this package it does not.
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

    told = logging.get_verbosity()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # recording leaves out checks of shapes, and says so
        logging.set_verbosity_error()  # recording asks the backbone for its loss, which it does not have
        try:
            frontend = FrontEndManager().load_by_framework("pytorch")
            decoder = TorchScriptPythonDecoder(module.eval(), example_input=torch.rand(EXAMPLE))
            model = frontend.convert(frontend.load(decoder))
        finally:
            logging.set_verbosity(told)
    model.reshape([-1, -1, -1])
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    return Core().compile_model(model, "CPU", settings)
