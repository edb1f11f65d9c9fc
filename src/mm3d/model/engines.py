"""The backbone for inference: torch with folded BatchNorms, or OpenVINO, in float32 or in bfloat16."""

import copy
import faulthandler
import os
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mm3d.model.backbone import Backbone, FoldedConv2d
from mm3d.model.int8 import Int8Backbone
from mm3d.model.linear import Conv2d
from mm3d.shared.errors import InputError

LIMIT = "ONEDNN_MAX_CPU_ISA"  # the best instructions that torch may use
EXAMPLE = (1, 128, 96)  # slices, height and width that OpenVINO's graph is recorded with; it takes any size


def avoid_broken_amx() -> None:
    """Keep torch from the matrix unit AMX where the processor has it and the virtual machine does not let it be used.

    There, a bfloat16 multiplication kills the process ("Illegal instruction"). It is tried in a child process. The
    limit is read when torch first multiplies in bfloat16, so this must come before.
    """
    if LIMIT in os.environ or not hasattr(os, "fork") or not torch.cpu._is_amx_tile_supported():
        return
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        torch.set_num_threads(1)
        square = torch.ones(64, 64, dtype=torch.bfloat16)
        torch.mm(square, square)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.environ[LIMIT] = "AVX512_CORE_BF16"


def require_bfloat16(device: str) -> None:
    """Refuse a device that only imitates bfloat16. It would take longer than with float32."""
    if device == "mps":
        raise InputError("bfloat16 is for CPUs and GPUs of NVIDIA; use --precision float32.")
    if device == "cuda":
        has_it = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_it = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if not has_it:
        raise InputError("This processor cannot compute in bfloat16; use --precision float32.")


def round_to_bfloat16(backbone: Backbone) -> Backbone:
    """A copy that keeps its weights in bfloat16, so that they need not be rounded in every call."""
    return copy.deepcopy(backbone).to(torch.bfloat16)


def fold_batch_norms(backbone: Backbone) -> Backbone:
    """A copy in which each frozen BatchNorm is folded into the convolution before it once, not in every call.

    The copy gives the same output and shares the tensors that do not change.
    """
    tensors = [*backbone.parameters(), *backbone.buffers()]
    backbone = copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})
    for layer in list(backbone.modules()):
        folded = getattr(layer, "convolution", None)
        if isinstance(folded, FoldedConv2d):
            weight, bias = (nn.Parameter(tensor.detach()) for tensor in folded.fold())
            outputs, inputs, height, width = weight.shape
            inputs *= folded.place["groups"]
            plain = Conv2d(inputs, outputs, (height, width), **folded.place, device="meta")
            plain.weight, plain.bias = weight, bias
            layer.convolution, layer.normalization = plain, nn.Identity()
    return backbone


class OpenVINOBackbone(Backbone):
    """A backbone whose stages OpenVINO computes, on as many threads as torch has.

    In bfloat16 it rounds the weights and what lies between the layers, but takes and gives float32. The memory of the
    result is OpenVINO's, so a result is valid only until the next call.
    """

    def __init__(self, backbone: Backbone, in_bfloat16: bool = False) -> None:
        nn.Module.__init__(self)
        self.config, self.output = backbone.config, backbone.output
        core = load_core()
        model = backbone.read(core) if isinstance(backbone, Int8Backbone) else record(backbone)
        precision = "bf16" if in_bfloat16 else "f32"
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
        self.request = core.compile_model(model, "CPU", settings).create_infer_request()

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


def load_core() -> Any:
    """OpenVINO, without its reports over the internet."""
    # OpenVINO reports that it is imported and what it converts. A hospital does not want that. OpenVINO does not report
    # if this package is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        from openvino import Core
    except ImportError as error:
        raise InputError(
            "The engine openvino is not installed; install it with: pip install 'mm3d[openvino]'."
        ) from error
    return Core()


def record(backbone: Backbone) -> Any:
    """The backbone's merged stages as OpenVINO's graph, for slices of any number and size."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    if backbone.config.backbone.family != "resnet":
        raise InputError("The engine openvino runs ResNet backbones only; use the engine torch for this model.")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # recording warns that it leaves out checks of shapes
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(_ChannelsLast(backbone).eval(), example_input=torch.rand(EXAMPLE))
        model = frontend.convert(frontend.load(decoder))
    model.reshape([-1, -1, -1])
    return model
