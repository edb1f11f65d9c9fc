"""Weights files: safetensors with a header that says how to build the model and where the weights come from.

A header is read without importing torch, which takes a second.
"""

import json
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mm3d.model.config import ModelConfig
from mm3d.model.hub import FILE, find_on_hub, is_on_hub, name_on_hub
from mm3d.shared.config import from_dict, parse_json, show, to_dict
from mm3d.shared.errors import InputError
from mm3d.shared.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

    from mm3d.model.detector import Detector

HEADER = "mm3d"  # the key of our JSON among safetensors' metadata
BODY = "backbone.body."  # how the names of a backbone's tensors begin, without the feature pyramid
INT8 = "int8"  # the key of the provenance that says how a backbone became int8, with the table of its accuracy
FORMAT = 1
SHIPPED = {True: "dbt", False: "mammo"}  # used where none are given, by whether the images are synthetic
RESEARCH_ONLY = "Research. Not a medical device; not for clinical use."


@dataclass(frozen=True)
class WeightsHeader:
    """The header of a weights file."""

    config: ModelConfig
    provenance: dict[str, Any] = field(default_factory=dict)  # the training's data and settings, or the imported file
    intended_use: str = RESEARCH_ONLY
    format: int = FORMAT  # the version of this header

    @property
    def int8(self) -> dict[str, Any] | None:
        """Of an int8 backbone: how it was made, and its accuracy beside that of float32."""
        return self.provenance.get(INT8)

    @property
    def precision(self) -> str:
        """The number format of the backbone."""
        return "int8" if self.int8 else "float32"


@dataclass(frozen=True)
class Transfer:
    """What happened to each tensor when weights moved into a model."""

    loaded: tuple[str, ...]  # the model's tensors that took their values unchanged
    converted: dict[str, str]  # the model's tensors that took changed values, and the change
    new: tuple[str, ...]  # the model's tensors that the weights did not have; they keep their start values
    dropped: dict[str, str]  # the weights' tensors that were not used, and why


def save(
    model: "Detector",
    path: Path | str,
    provenance: dict[str, Any],
    intended_use: str = RESEARCH_ONLY,
    only_body: bool = False,
) -> None:
    """Write a model to a weights file. An existing file is replaced only when the new one is complete.

    Parameters
    ----------
    model : Detector
        Not a copy that `Detector.for_inference` made.
    path : Path or str
        The file, which ends in .safetensors.
    provenance : dict
        Where the weights come from, as plain data for JSON.
    intended_use : str
        What the weights may be used for.
    only_body : bool
        Write only the body of the backbone. A training may start from such a file, with any heads.
    """
    from mm3d.model.int8 import Int8Backbone

    path = Path(path)
    if model.only_for_inference:
        raise InputError(f"{path} was not written: this model is a copy for inference; save the one it was made from.")
    if isinstance(model.backbone, Int8Backbone) and "accuracy" not in provenance.get(INT8, {}):
        raise InputError(f"{path} was not written: int8 weights need the table of their accuracy beside float32.")
    header = WeightsHeader(model.config, provenance, intended_use)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not only_body or name.startswith(BODY)}
    save_tensors(tensors, path, {HEADER: json.dumps(to_dict(header))})


def save_tensors(tensors: "dict[str, Tensor]", path: Path, metadata: dict[str, str]) -> None:
    """Write tensors. An existing file is replaced only when the new one is complete."""
    from safetensors.torch import save as serialise

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(path) as partial:
            # Not `save_file`: it writes under a name of its own choice, which a killed process leaves behind.
            partial.write_bytes(serialise(plain, metadata))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); make room, or choose another place.") from error


def load(path: Path | str, chunk: int | None = None) -> "Detector":
    """Build the model that a weights file describes, with its weights.

    2D weights are 3D weights: the model takes any number of slices (with the fusion "mlp", up to `config.slices`).

    Parameters
    ----------
    path : Path or str
        A weights file of mm3d.
    chunk : int, optional
        Replaces the file's own `ModelConfig.chunk`.

    Returns
    -------
    Detector
        On the CPU, in training mode.
    """
    from mm3d.model.empty import build_empty, limit_size
    from mm3d.model.int8 import CONSTANTS, GRAPH, Int8Backbone

    path = Path(path)
    config = read_header(path).config
    if has_only_body(path):
        raise InputError(
            f"{path} has only the body of a backbone; start a training from it: mm3d train --start {path}."
        )
    state = _read_tensors(path)
    try:
        with limit_size(sum(tensor.numel() for tensor in state.values())):
            model = build_empty(config if chunk is None else replace(config, chunk=chunk))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, RuntimeError) as error:  # sizes that do not go together
        raise InputError(f"{path} describes a model that cannot be built; write it again.") from error
    if {GRAPH, CONSTANTS} <= state.keys():
        model.backbone = Int8Backbone(model.backbone, state[GRAPH], state[CONSTANTS])
    expected, found = _describe_tensors(model.state_dict()), _describe_tensors(state)
    if found != expected:
        wrong = sorted(set(expected) ^ set(state)) or [name for name in expected if found[name] != expected[name]]
        raise InputError(f"{path} is damaged: its tensors do not fit its own header ({', '.join(wrong[:3])}, …).")
    model.load_state_dict(state)
    return model


def start_from(model: "Detector", path: Path | str) -> Transfer:
    """Load the tensors that a model shares with a weights file. The model's other tensors keep their values.

    This is how FFDM weights enter M&M-3D (all tensors load), a fusion with its own parameters (which are new), or the
    body of a backbone enters any detector.
    """
    from mm3d.model.int8 import GRAPH

    path = Path(path)
    read_header(path)
    state, own = _read_tensors(path), model.state_dict()
    if GRAPH in state:
        raise InputError(f"{path} is int8, which cannot be trained; start from the weights that it was made from.")
    for name in sorted(set(state) & set(own)):
        if state[name].shape != own[name].shape:
            raise InputError(
                f"{path} does not fit this model: {name} has shape {tuple(state[name].shape)} there and "
                f"{tuple(own[name].shape)} here; use the same backbone, channels, proposals and heads "
                "(and slices, with fusion mlp)."
            )
    shared = {name: tensor for name, tensor in state.items() if name in own}
    whole = [name for name in shared if shared[name].is_floating_point() != own[name].is_floating_point()]
    if whole:
        raise InputError(f"{path} is damaged: {whole[0]} holds whole numbers; download or write it again.")
    if not shared:
        raise InputError(f"{path} shares no tensor with this model; use weights of the same kind of model.")
    model.load_state_dict(shared, strict=False)
    return Transfer(
        loaded=tuple(shared),
        converted={},
        new=tuple(name for name in own if name not in state),
        dropped={name: "the model has no such part" for name in state if name not in own},
    )


def read_header(path: Path | str) -> WeightsHeader:
    """Read only the header, not the weights."""
    path = Path(path)
    with _open(path) as file:
        metadata = file.metadata() or {}
    if HEADER not in metadata:
        raise InputError(
            f"{path} was not written by mm3d; bring weights of other projects in with 'mm3d import-weights'."
        )
    try:
        content = parse_json(metadata[HEADER])
    except ValueError as error:
        raise InputError(f"{path} has a damaged header ({error}); download or write it again.") from error
    if isinstance(content, dict) and content.get("format") != FORMAT:
        number = show(content.get("format"))
        raise InputError(f"{path} has format {number}; this mm3d reads format {FORMAT}: update mm3d.")
    return from_dict(WeightsHeader, content, f"{path}: header")


def has_only_body(path: Path | str) -> bool:
    """Whether a weights file has nothing but the body of a backbone."""
    with _open(Path(path)) as file:
        return all(name.startswith(BODY) for name in file.keys())  # noqa: SIM118 (safe_open is no dictionary)


def shipped() -> list[Path]:
    """The weights files that come with the package."""
    return sorted(Path(str(files("mm3d") / "shipped")).glob("*.safetensors"))


def find(path: Path | str | None, synthetic: bool = False) -> Path:
    """The weights file that a user means with a path.

    It is the file itself; or the best, or else the last weights of a run folder; or those of a folder that `mm3d
    publish` wrote; or the name of weights that come with mm3d, or are on the hub (`hub.py`). None means those of ours
    that have seen such breasts: real ones, or `synthetic` ones of the virtual trial.
    """
    own = {one.stem: one for one in shipped()}
    if path is None:
        if SHIPPED[synthetic] in own:
            return own[SHIPPED[synthetic]]
        raise InputError("This mm3d comes without weights; give some with --weights, such as a run of 'mm3d train'.")
    if is_on_hub(path):
        return find_on_hub(path)
    path = Path(path)
    if str(path) in own and not path.exists():
        return own[str(path)]
    if not path.is_dir():
        return path
    for name in ("best.safetensors", "last.safetensors", FILE):
        if (path / name).is_file():
            return path / name
    raise InputError(
        f"{path} has neither best.safetensors nor last.safetensors; wait for the run's first validation, or give a "
        "weights file."
    )


def name_of(path: Path) -> str:
    """The name of a weights file for people: with the name of its run, if it has one; on the hub, that of its
    repository."""
    if on_hub := name_on_hub(path):
        return on_hub
    return (
        f"{path.resolve().parent.name}/{path.stem}"
        if path.name in ("best.safetensors", "last.safetensors", FILE)
        else path.stem
    )


def _open(path: Path, framework: str = "numpy") -> Any:
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {wrong}; give the path of a weights file.")
    try:
        return safe_open(path, framework=framework)
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a complete safetensors file ({error}); download or write it again, or bring weights of "
            "other projects in with 'mm3d import-weights'."
        ) from error


def _describe_tensors(state: "dict[str, Tensor]") -> dict[str, tuple[tuple[int, ...], bool]]:
    """The shape of each tensor, and whether it holds whole numbers, of which loading would silently make floats."""
    return {name: (tuple(tensor.shape), not tensor.is_floating_point()) for name, tensor in state.items()}


def _read_tensors(path: Path) -> "dict[str, Tensor]":
    with _open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no dictionary)
