"""`mm3d import-weights`: turn a public checkpoint into start weights, and print what happened to its tensors."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rich.table import Column, Table

from mm3d.model.config import BACKBONES
from mm3d.model.import_backbone import NOT_A_WEIGHT
from mm3d.model.import_checkpoint import Import, import_checkpoint
from mm3d.model.weights import RESEARCH_ONLY, Transfer, save
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import remove_partial

# A piece of a tensor's name, and the part of the model it belongs to. The first that fits counts.
PARTS = {
    "backbone.body.": "backbone",
    "backbone.": "feature pyramid",
    "proposal_": "proposals",
    ".cross_attn.": "heads: cross-attention",
    ".cls_logit.": "heads: class",
    "heads.": "heads",
    "": "classifier",
}


def import_weights(source: Path, output: Path, overwrite: bool) -> None:
    check_output(output, source, overwrite)
    imported = import_checkpoint(source)
    provenance = {
        "imported_from": source.name,
        "sha256": imported.sha256,
        "family": imported.family,
        "new": list(imported.transfer.new),
    }
    use = f"Start weights for training: never trained on mammograms, detects nothing yet. {RESEARCH_ONLY}"
    save(imported.model, output, provenance, use, imported.only_body)
    dropped = imported.transfer.dropped
    console = Console()
    console.print(_make_table(imported.transfer))
    for reason in dict.fromkeys(dropped.values()):
        names = [name for name in dropped if dropped[name] == reason]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        say(console, f"dropped: {', '.join(names[:3])}{more} ({reason})")
    say(console, f"{source}: {_describe(imported)}.")
    say(console, f"Wrote {output}. {use}")


def check_output(output: Path, source: Path, overwrite: bool) -> None:
    """Refuse a name that is none for weights, or would replace a file that the user wants to keep. Remove what killed
    runs left beside it."""
    if output.suffix != ".safetensors":
        raise InputError(f"{output} must end in .safetensors; give such a name with -o.")
    if output.is_dir() or output.resolve() == source.resolve():
        raise InputError(f"{output} is a folder or the file that is read; give another name with -o.")
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists already; give another name, or --overwrite to replace it.")
    remove_partial(output.resolve().parent)


def _describe(imported: Import) -> str:
    config = imported.model.config
    backbone = next((name for name, known in BACKBONES.items() if known == config.backbone), None)
    what = config.backbone.name or f"{config.backbone.family} {'-'.join(map(str, config.backbone.widths))}"
    if imported.only_body:
        return (
            f"{imported.family}, the backbone {backbone or what}; on a drawn picture its features differ from those of "
            f"the file's own network by {imported.difference:.0e}"
        )
    return (
        f"Sparse R-CNN of {imported.family}, {backbone or what}, "
        f"{config.proposals} proposals, {config.channels} channels, {config.heads} heads"
    )


def _find_part(name: str) -> str:
    return next(part for piece, part in PARTS.items() if piece in name)


def _make_table(transfer: Transfer) -> Table:
    """A row for every part: how many tensors were loaded, converted, are new, were dropped."""
    outcomes: dict[str, Iterable[str]] = {
        "loaded": transfer.loaded,
        "converted": transfer.converted,
        "new": transfer.new,
        "dropped": [name for name, reason in transfer.dropped.items() if reason != NOT_A_WEIGHT],
    }
    counts = Counter((_find_part(name), outcome) for outcome, names in outcomes.items() for name in names)
    notes: dict[str, list[str]] = {}
    for name, change in (transfer.dropped | transfer.converted).items():
        notes.setdefault(_find_part(name), []).append(change)
    notes["heads: cross-attention"] = ["starts as the identity"]
    table = Table(
        "part", *(Column(outcome, justify="right") for outcome in outcomes), "note", title="number of tensors"
    )
    for part in dict.fromkeys(part for part, _ in counts):
        changed = any(counts[part, outcome] for outcome in ("converted", "new", "dropped"))
        numbers = [str(counts[part, outcome] or "") for outcome in outcomes]
        table.add_row(part, *numbers, "; ".join(dict.fromkeys(notes.get(part, []))) if changed else "")
    return table
