"""Import of public checkpoints: a tensor under the wrong name loads without a word and ruins the start of a training.

The test writes checkpoints under each family's published names and shapes, at small width, and follows every value.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mm3d.cli import main
from mm3d.model.import_checkpoint import import_checkpoint
from mm3d.model.weights import load, read_header
from mm3d.shared.errors import InputError

D, N, INNER, FEEDFORWARD, HEADS, CLASSES = 16, 7, 4, 24, 2, 80
WIDTHS = (8, 16, 32, 64)
DEPTHS = (1, 2, 1, 1)


def numbered(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Every tensor with values of its own, so that two that are mixed up differ."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def layer_norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def batch_norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}


def detectron2() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"init_proposal_features.weight": (N, D), "init_proposal_boxes.weight": (N, 4)}
    for i in range(HEADS):
        head = f"head.head_series.{i}."
        shapes |= {f"{head}self_attn.in_proj_weight": (3 * D, D), f"{head}self_attn.in_proj_bias": (3 * D,)}
        shapes |= linear(f"{head}self_attn.out_proj", D, D)
        shapes |= linear(f"{head}inst_interact.dynamic_layer", 2 * D * INNER, D)
        shapes |= layer_norm(f"{head}inst_interact.norm1", INNER)
        shapes |= layer_norm(f"{head}inst_interact.norm2", D) | layer_norm(f"{head}inst_interact.norm3", D)
        shapes |= linear(f"{head}inst_interact.out_layer", D, 49 * D)
        shapes |= linear(f"{head}linear1", FEEDFORWARD, D) | linear(f"{head}linear2", D, FEEDFORWARD)
        for number in (1, 2, 3):
            shapes |= layer_norm(f"{head}norm{number}", D)
        shapes |= {f"{head}cls_module.0.weight": (D, D)} | layer_norm(f"{head}cls_module.1", D)
        for number in (0, 3, 6):
            shapes |= {f"{head}reg_module.{number}.weight": (D, D)}
            shapes |= layer_norm(f"{head}reg_module.{number + 1}", D)
        shapes |= linear(f"{head}class_logits", CLASSES, D) | linear(f"{head}bboxes_delta", 4, D)
    for level, width in enumerate(WIDTHS, start=2):
        shapes |= {f"backbone.fpn_lateral{level}.weight": (D, width, 1, 1), f"backbone.fpn_lateral{level}.bias": (D,)}
        shapes |= {f"backbone.fpn_output{level}.weight": (D, D, 3, 3), f"backbone.fpn_output{level}.bias": (D,)}
    stem = "backbone.bottom_up.stem.conv1"
    shapes |= {f"{stem}.weight": (8, 3, 7, 7)} | batch_norm(f"{stem}.norm", 8)
    into = 8
    for stage, (width, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True), start=2):
        for i in range(depth):
            block, inner = f"backbone.bottom_up.res{stage}.{i}.", width // 4
            sizes = ((inner, into, 1, 1), (inner, inner, 3, 3), (width, inner, 1, 1))
            for number, shape in enumerate(sizes, start=1):
                shapes |= {f"{block}conv{number}.weight": shape} | batch_norm(f"{block}conv{number}.norm", shape[0])
            if i == 0 and (into != width or stage > 2):
                shapes |= {f"{block}shortcut.weight": (width, into, 1, 1)} | batch_norm(f"{block}shortcut.norm", width)
            into = width
    return shapes


# The table of the facts, the other way round than the importer's, piece by piece.
TO_MMDET = {
    "inst_interact.norm1": "instance_interactive_conv.norm_in",
    "inst_interact.norm2": "instance_interactive_conv.norm_out",
    "inst_interact.norm3": "instance_interactive_conv.fc_norm",
    "inst_interact.out_layer": "instance_interactive_conv.fc_layer",
    "inst_interact.dynamic_layer": "instance_interactive_conv.dynamic_layer",
    "self_attn": "attention.attn",
    "norm1": "attention_norm",
    "norm2": "instance_interactive_conv_norm",
    "norm3": "ffn_norm",
    "linear1": "ffn.layers.0.0",
    "linear2": "ffn.layers.1",
    "cls_module": "cls_fcs",
    "reg_module": "reg_fcs",
    "class_logits": "fc_cls",
    "bboxes_delta": "fc_reg",
}


def mmdet_name(name: str) -> str:
    """The name mmdetection has for a detectron2 name."""
    if name.startswith("head.head_series."):
        number, rest = name.removeprefix("head.head_series.").split(".", 1)
        piece = next(piece for piece in TO_MMDET if rest.startswith(f"{piece}."))
        return f"roi_head.bbox_head.{number}.{TO_MMDET[piece]}{rest.removeprefix(piece)}"
    if name.startswith("init_proposal_"):
        return "rpn_head." + name.replace("boxes", "bboxes")
    for theirs, ours in (("backbone.fpn_lateral", "neck.lateral_convs"), ("backbone.fpn_output", "neck.fpn_convs")):
        if name.startswith(theirs):
            level, part = name.removeprefix(theirs).split(".")
            return f"{ours}.{int(level) - 2}.conv.{part}"
    name = name.replace("backbone.bottom_up.stem.conv1.norm.", "backbone.bn1.")
    name = name.replace("backbone.bottom_up.stem.conv1.", "backbone.conv1.")
    for stage in range(2, 6):
        name = name.replace(f"backbone.bottom_up.res{stage}.", f"backbone.layer{stage - 1}.")
    for convolution in (1, 2, 3):
        name = name.replace(f".conv{convolution}.norm.", f".bn{convolution}.")
    return name.replace(".shortcut.norm.", ".downsample.1.").replace(".shortcut.", ".downsample.0.")


def pvt_backbone(widths: tuple[int, ...] = (8, 16, 20, 32)) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    into = 3
    for stage, (width, depth, ratio) in enumerate(zip(widths, DEPTHS, (8, 8, 4, 4), strict=True), start=1):
        kernel = 7 if stage == 1 else 3
        embed = f"backbone.patch_embed{stage}"
        shapes |= {f"{embed}.proj.weight": (width, into, kernel, kernel), f"{embed}.proj.bias": (width,)}
        shapes |= layer_norm(f"{embed}.norm", width) | layer_norm(f"backbone.norm{stage}", width)
        for i in range(depth):
            block, inner = f"backbone.block{stage}.{i}.", width * ratio
            shapes |= layer_norm(f"{block}norm1", width) | layer_norm(f"{block}norm2", width)
            shapes |= linear(f"{block}attn.q", width, width) | linear(f"{block}attn.kv", 2 * width, width)
            shapes |= linear(f"{block}attn.proj", width, width) | layer_norm(f"{block}attn.norm", width)
            shapes |= {f"{block}attn.sr.weight": (width, width, 1, 1), f"{block}attn.sr.bias": (width,)}
            shapes |= linear(f"{block}mlp.fc1", inner, width) | linear(f"{block}mlp.fc2", width, inner)
            shapes |= {f"{block}mlp.dwconv.dwconv.weight": (inner, 1, 3, 3), f"{block}mlp.dwconv.dwconv.bias": (inner,)}
        into = width
    return shapes


def pvt() -> dict[str, tuple[int, ...]]:
    widths = (8, 16, 20, 32)
    shapes = {mmdet_name(name): shape for name, shape in detectron2().items() if "bottom_up" not in name}
    for i, width in enumerate(widths):
        shapes[f"neck.lateral_convs.{i}.conv.weight"] = (D, width, 1, 1)
    return shapes | pvt_backbone(widths)


def write(tmp_path: Path, tensors: dict[str, Tensor], wrapper: str, name: str = "checkpoint.pth") -> Path:
    path = tmp_path / name
    torch.save({wrapper: tensors, "iteration": 7, "meta": {"epoch": 36}}, path)
    return path


# (their name in detectron2 or PVT form, our name): one of every kind, written by hand from the model's own names.
PAIRS = [
    ("init_proposal_features.weight", "proposal_features"),
    ("init_proposal_boxes.weight", "proposal_boxes"),
    ("head.head_series.1.self_attn.in_proj_weight", "heads.1.self_attn.in_proj_weight"),
    ("head.head_series.0.self_attn.out_proj.bias", "heads.0.self_attn.out_proj.bias"),
    ("head.head_series.1.inst_interact.dynamic_layer.weight", "heads.1.dynamic_conv.make_kernels.weight"),
    ("head.head_series.1.inst_interact.norm1.bias", "heads.1.dynamic_conv.norm1.bias"),
    ("head.head_series.1.inst_interact.norm2.weight", "heads.1.dynamic_conv.norm2.weight"),
    ("head.head_series.1.inst_interact.norm3.weight", "heads.1.dynamic_conv.norm3.weight"),
    ("head.head_series.0.inst_interact.out_layer.weight", "heads.0.dynamic_conv.out.weight"),
    ("head.head_series.0.linear1.weight", "heads.0.linear1.weight"),
    ("head.head_series.0.linear2.bias", "heads.0.linear2.bias"),
    ("head.head_series.0.norm1.weight", "heads.0.norm1.weight"),
    ("head.head_series.0.norm2.weight", "heads.0.norm2.weight"),
    ("head.head_series.0.norm3.weight", "heads.0.norm3.weight"),
    ("head.head_series.0.cls_module.0.weight", "heads.0.cls_tower.0.weight"),
    ("head.head_series.0.cls_module.1.bias", "heads.0.cls_tower.1.bias"),
    ("head.head_series.1.reg_module.6.weight", "heads.1.reg_tower.6.weight"),
    ("head.head_series.1.reg_module.4.bias", "heads.1.reg_tower.4.bias"),
    ("head.head_series.1.bboxes_delta.weight", "heads.1.reg_deltas.weight"),
    ("backbone.fpn_lateral2.weight", "backbone.lateral.0.weight"),
    ("backbone.fpn_lateral5.bias", "backbone.lateral.3.bias"),
    ("backbone.fpn_output4.weight", "backbone.output.2.weight"),
]
STAGES = "backbone.body.encoder.stages."
RESNET_PAIRS = [
    ("backbone.bottom_up.stem.conv1.norm.running_var", "backbone.body.embedder.embedder.normalization.running_var"),
    ("backbone.bottom_up.res2.0.conv1.weight", f"{STAGES}0.layers.0.layer.0.convolution.weight"),
    ("backbone.bottom_up.res2.0.conv3.norm.running_mean", f"{STAGES}0.layers.0.layer.2.normalization.running_mean"),
    ("backbone.bottom_up.res3.1.conv2.weight", f"{STAGES}1.layers.1.layer.1.convolution.weight"),
    ("backbone.bottom_up.res5.0.shortcut.weight", f"{STAGES}3.layers.0.shortcut.convolution.weight"),
    ("backbone.bottom_up.res4.0.shortcut.norm.bias", f"{STAGES}2.layers.0.shortcut.normalization.bias"),
]
LAYERS = "backbone.body.encoder.layers."
PVT_PAIRS = [
    ("backbone.patch_embed2.proj.weight", f"{LAYERS}1.patch_embedding.proj.weight"),
    ("backbone.patch_embed1.norm.bias", f"{LAYERS}0.patch_embedding.layer_norm.bias"),
    ("backbone.block2.1.norm1.weight", f"{LAYERS}1.blocks.1.layer_norm_1.weight"),
    ("backbone.block2.1.norm2.weight", f"{LAYERS}1.blocks.1.layer_norm_2.weight"),
    ("backbone.block3.0.attn.q.weight", f"{LAYERS}2.blocks.0.attention.query.weight"),
    ("backbone.block3.0.attn.proj.bias", f"{LAYERS}2.blocks.0.attention.proj.bias"),
    ("backbone.block3.0.attn.sr.weight", f"{LAYERS}2.blocks.0.attention.spatial_reduction.weight"),
    ("backbone.block3.0.attn.norm.weight", f"{LAYERS}2.blocks.0.attention.layer_norm.weight"),
    ("backbone.block4.0.mlp.fc1.weight", f"{LAYERS}3.blocks.0.mlp.dense1.weight"),
    ("backbone.block4.0.mlp.dwconv.dwconv.weight", f"{LAYERS}3.blocks.0.mlp.dwconv.dwconv.weight"),
    ("backbone.block4.0.mlp.fc2.bias", f"{LAYERS}3.blocks.0.mlp.dense2.bias"),
    ("backbone.norm4.weight", f"{LAYERS}3.layer_norm.weight"),
]


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("family", ["detectron2", "mmdetection", "PVT"])
def test_every_value_arrives_under_its_name(tmp_path: Path, family: str, suffix: str) -> None:
    if family == "PVT":
        tensors, pairs = numbered(pvt()), [(mmdet_name(a), b) for a, b in PAIRS] + PVT_PAIRS
    elif family == "mmdetection":
        tensors = {mmdet_name(name): t for name, t in numbered(detectron2()).items()}
        pairs = [(mmdet_name(a), b) for a, b in PAIRS + RESNET_PAIRS]
        tensors["backbone.bn1.num_batches_tracked"] = torch.tensor(5)
    else:
        tensors, pairs = numbered(detectron2()), PAIRS + RESNET_PAIRS
    path = tmp_path / f"checkpoint{suffix}"
    if suffix == ".safetensors":
        save_file(tensors, path)
    else:
        write(tmp_path, tensors, "model" if family == "detectron2" else "state_dict")

    imported = import_checkpoint(path)
    state = imported.model.state_dict()
    for theirs, ours in pairs:
        assert torch.equal(state[ours], tensors[theirs]), f"{theirs} -> {ours}"
    assert imported.family == family
    config = imported.model.config
    assert (config.channels, config.proposals, config.heads) == (D, N, HEADS)
    assert (config.dynamic_channels, config.feedforward, config.backbone.depths) == (INNER, FEEDFORWARD, DEPTHS)

    # And every tensor of the checkpoint is somewhere in the model, apart from the RGB stem, the classes and a counter.
    values = {float(tensor.flatten()[0]) for tensor in state.values()}
    changed = (
        "stem.conv1.weight",
        "backbone.conv1.weight",
        "patch_embed1.proj.weight",
        "class_logits",
        "fc_cls",
        "num_",
    )
    for name, tensor in tensors.items():
        assert any(part in name for part in changed) or float(tensor.flatten()[0]) in values, name

    transfer = imported.transfer
    assert len(transfer.loaded) + len(transfer.converted) + len(transfer.new) == len(state)
    assert all(".cross_attn." in name or ".cls_logit." in name for name in transfer.new)
    assert sum("80 classes" in reason for reason in transfer.dropped.values()) == 2 * HEADS


def test_an_rgb_stem_sees_a_grey_image_as_it_would_see_it_in_rgb(tmp_path: Path) -> None:
    tensors = numbered(detectron2())
    imported = import_checkpoint(write(tmp_path, tensors, "model"))
    grey = torch.rand(1, 1, 20, 20)
    stem = imported.model.state_dict()["backbone.body.embedder.embedder.convolution.weight"]
    in_rgb = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), tensors["backbone.bottom_up.stem.conv1.weight"])
    torch.testing.assert_close(torch.nn.functional.conv2d(grey, stem), in_rgb, atol=1e-4, rtol=1e-4)


def test_pvt_keys_and_values_are_taken_apart_in_the_right_order(tmp_path: Path) -> None:
    tensors = numbered(pvt())
    state = import_checkpoint(write(tmp_path, tensors, "state_dict")).model.state_dict()
    both = tensors["backbone.block2.0.attn.kv.weight"]
    assert torch.equal(state[f"{LAYERS}1.blocks.0.attention.key.weight"], both[:16])
    assert torch.equal(state[f"{LAYERS}1.blocks.0.attention.value.weight"], both[16:])


def test_a_checkpoint_with_one_class_keeps_it(tmp_path: Path) -> None:
    tensors = numbered(detectron2())
    for i in range(HEADS):
        for part in ("weight", "bias"):
            name = f"head.head_series.{i}.class_logits.{part}"
            tensors[name] = tensors[name][:1]
    imported = import_checkpoint(write(tmp_path, tensors, "model"))
    assert "heads.0.cls_logit.weight" in imported.transfer.loaded
    state = imported.model.state_dict()
    assert torch.equal(state["heads.0.cls_logit.bias"], tensors["head.head_series.0.class_logits.bias"])


def test_what_is_new_is_the_same_in_every_import(tmp_path: Path) -> None:
    path = write(tmp_path, numbered(detectron2()), "model")
    first = import_checkpoint(path).model.state_dict()
    torch.manual_seed(5)  # whatever random numbers were drawn before
    second = import_checkpoint(path).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"head.head_series.0.norm1.weight": Malicious()}}, tmp_path / "evil.pth")
    with pytest.raises(InputError, match=r"evil\.pth is refused.*could run code"):
        import_checkpoint(tmp_path / "evil.pth")
    assert not (tmp_path / "pwned").exists()


def test_unknown_layouts_and_names_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no known layout.*transformer\.layer\.weight"):
        import_checkpoint(write(tmp_path, {"transformer.layer.weight": torch.zeros(2)}, "model"))
    strange = numbered(detectron2()) | {"head.head_series.0.mask_module.weight": torch.zeros(2)}
    with pytest.raises(InputError, match=r"not understood \(1\): heads\.0\.mask_module\.weight"):
        import_checkpoint(write(tmp_path, strange, "model"))
    incomplete = numbered(detectron2())
    del incomplete["head.head_series.1.linear1.weight"]
    with pytest.raises(InputError, match=r"lacks \(1\): heads\.1\.linear1\.weight"):
        import_checkpoint(write(tmp_path, incomplete, "model"))


@pytest.mark.parametrize(
    "content",
    [b"", b"this is a text", b"h", b"<html>", b"PK\x03\x04 a broken zip", b"\x80\x02}q\x00h.", b"\x80\x04\x95"],
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_that_are_no_checkpoints_are_refused_in_a_sentence(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    # A web page is no danger, and whoever saved one is not to be told so.
    with pytest.raises(InputError, match=rf"broken{suffix} is damaged or no checkpoint at all"):
        import_checkpoint(path)


def test_other_things_than_checkpoints_are_refused_by_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        import_checkpoint(tmp_path)
    torch.save({1: torch.zeros(2)}, tmp_path / "numbers.pth")
    with pytest.raises(InputError, match="holds no state dict"):
        import_checkpoint(tmp_path / "numbers.pth")
    ours = import_checkpoint(write(tmp_path, numbered(detectron2()), "model")).model
    save_file({name: tensor.contiguous() for name, tensor in ours.state_dict().items()}, tmp_path / "ours.safetensors")
    with pytest.raises(InputError, match="weights file of mm3d already"):
        import_checkpoint(tmp_path / "ours.safetensors")
    tensors = numbered(detectron2())
    tensors["head.head_series.0.norm1.weight"][0] = torch.nan
    with pytest.raises(InputError, match="not numbers"):
        import_checkpoint(write(tmp_path, tensors, "model"))


def test_a_checkpoint_of_data_parallel_training_is_the_same_checkpoint(tmp_path: Path) -> None:
    tensors = {f"module.{name}": tensor for name, tensor in numbered(detectron2()).items()}
    state = import_checkpoint(write(tmp_path, tensors, "model")).model.state_dict()
    assert torch.equal(state["heads.0.linear1.weight"], tensors["module.head.head_series.0.linear1.weight"])


def test_the_command_prints_its_account_and_never_overwrites_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # a row of the table on a line
    source, output = write(tmp_path, numbered(detectron2()), "model"), tmp_path / "start.safetensors"
    assert main(["import-weights", str(source), "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    for word in ("loaded", "converted", "new", "dropped", "80 classes", "RGB"):
        assert word in printed
    rows = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines() if line.startswith("│")]
    counted = {part: counts for _, part, *counts, _, _ in rows}
    assert counted["proposals"] == ["2", "", "", ""]
    assert counted["feature pyramid"] == ["16", "", "", ""]
    assert counted["heads: cross-attention"] == ["", "", str(6 * HEADS), ""]
    assert counted["heads: class"] == ["", "", str(2 * HEADS), str(2 * HEADS)]
    assert counted["backbone"][1:] == ["1", "", ""]
    assert re.search("cross-attention.*starts as the identity", printed)
    assert load(output).config.proposals == N
    header = read_header(output)
    assert header.provenance["family"] == "detectron2"
    assert "never trained on mammograms" in header.intended_use

    before = output.read_bytes()
    assert main(["import-weights", str(source), "-o", str(output)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["import-weights", str(tmp_path / "none.pth"), "-o", str(output), "--overwrite"]) == 1
    assert "none.pth does not exist" in capsys.readouterr().err
    assert output.read_bytes() == before
    output.write_bytes(b"an older one")
    assert main(["import-weights", str(source), "-o", str(output), "--overwrite"]) == 0
    assert output.read_bytes() == before
    theirs = tmp_path / "theirs.safetensors"
    save_file(numbered(detectron2()), theirs)
    downloaded = theirs.read_bytes()
    (tmp_path / "folder.safetensors").mkdir()
    for given, wanted, said in (
        (source, tmp_path / "start.bin", "start.bin must end in .safetensors"),
        (theirs, theirs, "theirs.safetensors is a folder or the file that is read"),
        (source, tmp_path / "folder.safetensors", "folder.safetensors is a folder or the file that is read"),
        (source, source / "below.safetensors", "below.safetensors cannot be written"),  # a file is no folder
    ):
        assert main(["import-weights", str(given), "-o", str(wanted), "--overwrite"]) == 1
        errors = capsys.readouterr().err
        assert said in errors
        assert errors.count("\n") == 1
    assert theirs.read_bytes() == downloaded
