"""Weights files: a lost header or a silent partial load would have a hospital run another model than it validated."""

import json
import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.examples import build, random_breasts, tiny

from mm3d.model.detector import Detector
from mm3d.model.weights import HEADER, load, read_header, save, start_from
from mm3d.shared.errors import InputError


def test_a_file_alone_rebuilds_the_model(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "weights.safetensors"
    model = build(tiny(fusion="query", proposals=5))
    save(model, path, {"trained_on": "two blobs"}, "For this test only.")
    loaded = load(path).eval()
    assert loaded.config == model.config
    breasts = random_breasts()
    with torch.no_grad():
        assert torch.equal(loaded(breasts).logits, model(breasts).logits)
        assert torch.equal(loaded(breasts).boxes, model(breasts).boxes)
    header = read_header(path)
    assert header.provenance == {"trained_on": "two blobs"}
    assert header.intended_use == "For this test only."
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file stays behind


def test_saved_weights_can_be_read_by_others_and_by_a_path_in_quotes(tmp_path: Path) -> None:
    path = str(tmp_path / "w.safetensors")
    umask = os.umask(0o022)
    try:
        save(build(), path, {})
    finally:
        os.umask(umask)
    assert Path(path).stat().st_mode & 0o777 == 0o644
    assert load(path).config == read_header(path).config


def test_a_copy_for_inference_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save the one it was made from"):
        save(build().for_inference(), tmp_path / "w.safetensors", {})


def test_weights_say_not_for_clinical_use_unless_told_otherwise(tmp_path: Path) -> None:
    save(build(), tmp_path / "w.safetensors", {})
    assert "not for clinical use" in read_header(tmp_path / "w.safetensors").intended_use


@pytest.mark.parametrize(("first", "second"), [(1, 16), (16, 1)])
def test_2d_weights_load_into_3d_and_back(tmp_path: Path, first: int, second: int) -> None:
    source = build(tiny(slices=first))
    save(source, tmp_path / "w.safetensors", {})
    target = Detector(tiny(slices=second)).eval()
    transfer = start_from(target, tmp_path / "w.safetensors")
    assert set(transfer.loaded) == set(target.state_dict())
    assert not transfer.new
    assert not transfer.dropped
    breasts = random_breasts(slices=3)
    with torch.no_grad():
        assert torch.equal(target(breasts).logits, source(breasts).logits)


def test_ffdm_weights_start_a_variant_with_parameters_of_its_own(tmp_path: Path) -> None:
    save(build(), tmp_path / "w.safetensors", {})
    target = Detector(tiny(fusion="timesform"))
    transfer = start_from(target, tmp_path / "w.safetensors")
    assert transfer.new
    assert all(".fusion." in name for name in transfer.new)
    back = start_from(build(seed=1), _saved(target, tmp_path / "t.safetensors"))
    assert set(back.dropped) == set(transfer.new)


def _saved(model: Detector, path: Path) -> Path:
    save(model, path, {})
    return path


def test_weights_of_another_width_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path = _saved(build(), tmp_path / "w.safetensors")
    target = build(tiny(channels=16), seed=1)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(InputError, match="same backbone, channels"):
        start_from(target, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_damaged_and_foreign_files_are_refused_with_their_name(tmp_path: Path) -> None:
    whole = _saved(build(), tmp_path / "whole.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"cut\.safetensors is not a complete safetensors file"):
        load(cut)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, foreign)
    with pytest.raises(InputError, match=r"foreign\.safetensors was not written by mm3d.*import-weights"):
        load(foreign)
    with pytest.raises(InputError, match=r"absent\.safetensors does not exist"):
        load(tmp_path / "absent.safetensors")


def _with_header(source: Path, target: Path, **changes: object) -> Path:
    with safe_open(source, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, target, {HEADER: json.dumps(header | changes)})
    return target


def test_a_header_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = _saved(build(), tmp_path / "w.safetensors")
    newer = _with_header(path, tmp_path / "newer.safetensors", format=99)
    with pytest.raises(InputError, match=r"format 99.*update mm3d"):
        load(newer)
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()[HEADER])["config"]
    lying = _with_header(path, tmp_path / "lying.safetensors", config=config | {"heads": 2})
    with pytest.raises(InputError, match="do not fit its own header"):
        load(lying)
    misspelt = _with_header(path, tmp_path / "misspelt.safetensors", config=config | {"proposal": 3})
    with pytest.raises(InputError, match="unknown setting 'proposal'; did you mean 'proposals'"):
        load(misspelt)


def test_an_interrupted_save_keeps_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the middle."""
    path = _saved(build(), tmp_path / "w.safetensors")
    before = path.read_bytes()
    other = build(tiny(proposals=3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(InputError, match=r"w.safetensors cannot be written \(.*\); make room"):
            save(other, path, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
