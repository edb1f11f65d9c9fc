"""Weights files and checkpoints of strangers: none may take the memory, or be believed where it lies."""

import io
import json
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.exams import write_weights

from mm3d.cli import main
from mm3d.model import weights
from mm3d.model.import_checkpoint import import_checkpoint
from mm3d.predict.run import Options, make_setup
from mm3d.predict.settings import PredictSettings
from mm3d.shared.errors import InputError


@pytest.fixture(autouse=True)
def _few_bytes() -> Iterator[None]:
    """More memory than 6 GB is not given, so that a bomb fails its test and not the computer."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (6_000_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


# ---- weights files -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "good.safetensors")


def rewrite(good: Path, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The same tensors under a changed header."""
    with safe_open(good, framework="pt") as file:
        header = json.loads(file.metadata()[weights.HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = change(header)
    text = changed if isinstance(changed, str) else json.dumps(header if changed is None else changed)
    save_file(tensors, path, {weights.HEADER: text})
    return path


def use(path: Path) -> None:
    """What `mm3d predict` and `mm3d info` do with weights, without an exam."""
    assert main(["info", str(path)]) == 0
    make_setup(Options(PredictSettings(), path), synthetic=False)
    weights.load(path)


def deep(count: int) -> Any:
    value: Any = 1
    for _ in range(count):
        value = [value]
    return value


def config(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["config"].update(changes)


def backbone(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["config"]["backbone"].update(changes)


def provenance(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["provenance"].update(changes)


def auto(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return backbone(family="auto", name="convnext", settings=settings)


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda _: "{",
    "no table": lambda _: "[1, 2]",
    "a word": lambda _: '"weights"',
    "null": lambda _: "null",
    "deep": lambda _: "[" * 100_000 + "]" * 100_000,
    "deep provenance": provenance(notes=deep(200)),
    "another format": lambda header: header.update(format=deep(5)),
    "no config": lambda header: header.pop("config") and None,
    "config is a list": lambda header: header.update(config=[1]),
    "config is null": lambda header: header.update(config=None),
    "unknown setting": config(layers=3),
    "a million heads": config(heads=1_000_000),
    "no heads": config(heads=0),
    "attention heads 0": config(attention_heads=0),
    "many small heads": config(heads=100),
    "a million proposals": config(proposals=1_000_000),
    "wide": config(channels=4096, attention_heads=4, feedforward=65_536),
    "an endless number": config(channels=10**400),
    "a million blocks": backbone(depths=[1_000_000] * 4),
    "many blocks": backbone(depths=[200] * 4),
    "wide blocks": backbone(widths=[16_384] * 4, depths=[200] * 4),
    "negative width": backbone(widths=[-8, 16, 24, 32]),
    "stem 0": backbone(stem=0),
    "other blocks": backbone(layer="bottleneck"),
    "NaN box": config(canonical_box=float("nan")),
    "no deviation": config(pixel_std=0.0),
    "unknown family": backbone(family="mine"),
    "unknown auto": backbone(family="auto", name="no-such-model"),
    "auto with a million layers": auto(depths=[1_000_000, 1, 1, 1]),
    "auto, many layers": auto(depths=[90_000, 1, 1, 1]),
    "auto, wide": auto(hidden_sizes=[90_000] * 4),
    "auto, endless": auto(hidden_sizes=[1e400] * 4),
    "auto, deep": auto(depths=deep(100)),
    "auto, words": auto(depths="many", hidden_sizes={"a": None}),
    "provenance is a list": lambda header: header.update(provenance=[1]),
    "intended use is a number": lambda header: header.update(intended_use=5),
    "unknown input": provenance(input="x-ray"),
    "input is a list": provenance(input=["volume"]),
    "histogram is a word": provenance(histogram="abc"),
    "histogram of tables": provenance(histogram=[{}]),
    "prepare is a list": provenance(prepare=[1]),
    "prepare is a word": provenance(prepare="large"),
    "prepare to a huge size": provenance(prepare={"width": 1_000_000, "length": 1_000_000, "slices": 1000}),
    "prepare to nothing": provenance(prepare={"width": 0, "length": 1, "slices": 1}),
    "threshold is a word": provenance(operating_point="high"),
    "threshold is a list": provenance(operating_point=[0.5]),
    "threshold is NaN": provenance(operating_point=float("nan")),
    "threshold without one": provenance(operating_point={"source": "me"}),
}
HARMLESS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "study is a word": provenance(study="virtual"),
    "study without figures": provenance(study={"figures": {}}),
    "study with words as figures": provenance(study={"figures": {"recall@0.25": "x", "auc": 1}, "study": 1, "run": 1}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused_in_a_sentence(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = rewrite(good, tmp_path / "w.safetensors", HEADERS[name])
    with pytest.raises((InputError, AssertionError)) as error:  # `mm3d info` says it on stderr
        use(path)
    said = str(error.value) if isinstance(error.value, InputError) else capsys.readouterr().err
    assert said
    assert len(said) < 600
    assert "unexpectedly" not in said


@pytest.mark.parametrize("name", HARMLESS)
def test_what_weights_only_tell_may_be_anything(good: Path, tmp_path: Path, name: str) -> None:
    use(rewrite(good, tmp_path / "w.safetensors", HARMLESS[name]))


def change_tensors(good: Path, path: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Path:
    with safe_open(good, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: change(name, file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata)
    return path


def test_whole_numbers_are_no_weights(good: Path, tmp_path: Path) -> None:
    """They were loaded as if nothing was wrong, and every score came from zeros."""
    path = change_tensors(good, tmp_path / "w.safetensors", lambda _, tensor: tensor.to(torch.int64))
    with pytest.raises(InputError, match="is damaged"):
        weights.load(path)
    with pytest.raises(InputError, match="holds whole numbers"):
        weights.start_from(weights.load(good), path)


def test_weights_with_a_tensor_for_every_part_are_not_limited(good: Path) -> None:
    assert len(weights.load(good).heads) == 3


# ---- checkpoints of other projects ---------------------------------------------------------------------------------


def save_archive(path: Path, state: Any) -> list[tuple[str, bytes]]:
    """The entries of a checkpoint as torch writes it."""
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def test_a_compressed_archive_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    """6 MB became 13 GB. torch itself never compresses."""
    path = tmp_path / "bomb.pth"
    entries = save_archive(path, {"model": {"head.head_series.0.x": torch.zeros(2)}})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, bytes(20_000_000) if name.endswith("/data/0") else content)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="is not an archive as torch writes it"):
        import_checkpoint(path)


def test_an_archive_whose_entries_overlap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pth"
    entries = save_archive(path, {"model": {"head.head_series.0.x": torch.zeros(100_000)}})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
        (data,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data/0"))
        archive.filelist += [data] * 20
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="is not an archive as torch writes it"):
        import_checkpoint(path)


def test_an_archive_with_two_lists_of_entries_is_refused(tmp_path: Path) -> None:
    """torch and Python might read different ones, and only one of them was looked at."""
    path = tmp_path / "two.pth"
    torch.save({"model": {}}, path)
    content = path.read_bytes()
    for strange in (content + content, content[:-2] + struct.pack("<H", 4) + b"1234"):
        path.write_bytes(strange)
        with pytest.raises(InputError, match=r"two\.pth is"):
            import_checkpoint(path)


class Zeros:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return bytearray, (50_000_000_000,)


class Tensor:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return torch.FloatTensor, (5_000_000_000,)


@pytest.mark.parametrize("bomb", [Zeros(), Tensor()])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_few_bytes_that_ask_for_much_are_refused(tmp_path: Path, bomb: object, zipped: bool) -> None:
    path = tmp_path / "few.pth"
    torch.save({"model": bomb}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match="holds something else than tensors"):
        import_checkpoint(path)


def test_a_tensor_that_repeats_a_number_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "endless.pth"
    torch.save({"model": {"head.head_series.0.x": torch.zeros(1).expand(100_000, 100_000)}}, path)
    with pytest.raises(InputError, match="larger than the file"):
        import_checkpoint(path)


def test_a_checkpoint_of_before_2019_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save({"strange": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="is of no known layout"):
        import_checkpoint(path)


@pytest.mark.parametrize(
    "state",
    [
        {"head.head_series.0.x": torch.zeros(2), "proposal_features": torch.zeros(2)},
        {"head.head_series.0.x": torch.zeros(2), "init_proposal_features.weight": torch.zeros(2, 8, 8)},
        {"head.head_series.0.x": torch.zeros(2), "init_proposal_features.weight": torch.tensor(1.0)},
        {"roi_head.bbox_head.0.attn.kv.x": torch.tensor(1.0), "backbone.patch_embed1.x": torch.zeros(1)},
        {"_conv_stem.weight": torch.zeros(2), "_blocks.0._depthwise_conv.weight": torch.tensor(1)},
        {"_conv_stem.weight": torch.zeros(2), "_blocks.0._project_conv.weight": torch.tensor(1)}
        | {"_blocks.0._depthwise_conv.weight": torch.tensor(1)},
        {
            f"_blocks.{n}._{kind}_conv.weight": torch.zeros(n + 1)
            for n in range(7)
            for kind in ("project", "depthwise", "expand")
        }
        | {"_conv_stem.weight": torch.tensor(1)},
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_tensors_of_other_shapes_are_refused_in_a_sentence(
    tmp_path: Path, state: dict[str, torch.Tensor], suffix: str
) -> None:
    path = tmp_path / f"shapes{suffix}"
    if suffix == ".pth":
        torch.save(state, path)
    else:
        save_file(state, path)
    with pytest.raises(InputError, match=rf"shapes{suffix}"):
        import_checkpoint(path)


def test_many_small_heads_do_not_become_large_ones(tmp_path: Path) -> None:
    """Each head of a checkpoint is as wide as its proposals, however little the file has of it."""
    state = {f"head.head_series.{n}.x": torch.zeros(1) for n in range(90)}
    state |= {"init_proposal_features.weight": torch.zeros(1, 4096)}
    state |= {f"backbone.fpn_lateral{i}.weight": torch.zeros(1, 2048, 1, 1) for i in range(2, 6)}
    state |= {"backbone.bottom_up.stem.conv1.weight": torch.zeros(64, 1, 1, 1)}
    state |= {f"backbone.bottom_up.res{i}.0.conv1.weight": torch.zeros(1) for i in range(2, 6)}
    state |= {"head.head_series.0.inst_interact.norm1.weight": torch.zeros(64)}
    state |= {"head.head_series.0.linear1.weight": torch.zeros(2048, 1)}
    save_file(state, tmp_path / "heads.safetensors")
    with pytest.raises(InputError, match="larger model than"):
        import_checkpoint(tmp_path / "heads.safetensors")


def write_keras(folder: Path, layers: list[dict[str, Any]], manifest: list[dict[str, Any]]) -> Path:
    path = folder / "model.json"
    topology = {"model_config": {"config": {"layers": layers}}}
    path.write_text(json.dumps({"modelTopology": topology, "weightsManifest": manifest}))
    return path


def test_a_network_of_keras_reads_each_file_once(tmp_path: Path) -> None:
    """A list that names one file 10,000 times would be read into memory 10,000 times."""
    (tmp_path / "a.bin").write_bytes(bytes(4_000_000))
    manifest = [{"paths": ["a.bin"] * 10_000, "weights": []}]
    with pytest.raises(InputError, match=r"model\.json"):
        import_checkpoint(write_keras(tmp_path, [], manifest))


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[]", "{}", '{"modelTopology": 1}', '"word"', '{"modelTopology": {"model_config": []}}']
)
def test_a_description_of_keras_that_is_none_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(InputError, match="does not describe a network of Keras"):
        import_checkpoint(path)


@pytest.mark.parametrize("entry", [{"shape": [-1]}, {"shape": ["a"]}, {"shape": [[]]}, {"shape": None}, {}])
def test_shapes_of_keras_that_are_none_are_refused_in_a_sentence(tmp_path: Path, entry: dict[str, Any]) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(4))
    manifest = [{"paths": ["a.bin"], "weights": [{"name": "conv1/kernel", "dtype": "float32"} | entry]}]
    with pytest.raises(InputError, match=r"model\.json"):
        import_checkpoint(write_keras(tmp_path, [], manifest))


def test_layers_of_keras_without_names_are_refused_in_a_sentence(tmp_path: Path) -> None:
    wrong: list[list[Any]] = [[1], [{}], [{"name": 5}], [{"name": "res2a_branch2c", "config": []}]]
    for layers in wrong:
        with pytest.raises(InputError, match=r"model\.json"):
            import_checkpoint(write_keras(tmp_path, layers, []))


def test_a_folder_of_transformers_runs_no_code_of_its_own(tmp_path: Path) -> None:
    """transformers would ask on the terminal whether it may."""
    auto_map = {"AutoConfig": "evil.Config", "AutoBackbone": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto_map}))
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the folder ran')\n")
    with pytest.raises(InputError, match="cannot be read, or is no backbone"):
        import_checkpoint(tmp_path)


def test_a_compressed_archive_in_a_folder_of_transformers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "convnext", "hidden_sizes": [8, 8, 8, 8]}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
    (tmp_path / "pytorch_model.bin").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="is not an archive as torch writes it"):
        import_checkpoint(tmp_path)
