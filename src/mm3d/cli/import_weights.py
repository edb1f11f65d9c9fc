"""`mm3d import-weights`: a public checkpoint in, start weights and an account of them out."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from mm3d.model.checkpoints import NOT_A_WEIGHT, Import, import_checkpoint
from mm3d.model.config import BACKBONES
from mm3d.model.weights import RESEARCH_ONLY, Transfer, save
from mm3d.shared.errors import InputError


def import_weights(source: Path, output: Path, overwrite: bool) -> None:
    if output.suffix != ".safetensors":
        raise InputError(f"{output} must end in .safetensors; give such a name with -o.")
    if output.is_dir() or output.resolve() == source.resolve():
        raise InputError(f"{output} is a folder or the checkpoint itself; give another name with -o.")
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists already; give another name, or --overwrite to replace it.")
    imported = import_checkpoint(source)
    provenance = {
        "imported_from": source.name,
        "sha256": imported.sha256,
        "family": imported.family,
        "new": list(imported.transfer.new),
    }
    use = f"Start weights for training: never trained on mammograms, detects nothing yet. {RESEARCH_ONLY}"
    save(imported.model, output, provenance, use)
    console = Console()
    console.print(_table(imported.transfer))
    for reason, names in _by_reason(imported.transfer.dropped).items():
        console.print(f"dropped: {_names(names)} ({reason})", soft_wrap=True, highlight=False)
    console.print(f"{source}: {_describe(imported)}.", soft_wrap=True, highlight=False)
    console.print(f"Wrote {output}. {use}", soft_wrap=True, highlight=False)


def _describe(imported: Import) -> str:
    config = imported.model.config
    backbone = next((name for name, known in BACKBONES.items() if known == config.backbone), None)
    widths = "-".join(map(str, config.backbone.widths))
    return (
        f"Sparse R-CNN of {imported.family}, {backbone or f'{config.backbone.family} {widths}'}, "
        f"{config.proposals} proposals, {config.channels} channels, {config.heads} heads"
    )


def part_of(name: str) -> str:
    """The part of the model a tensor belongs to, in words for the table."""
    if name.startswith("backbone.body."):
        return "backbone"
    if name.startswith("backbone."):
        return "feature pyramid"
    if name.startswith("proposal_"):
        return "proposals"
    for piece, part in (
        (".cross_attn.", "heads: cross-attention"),
        (".cls_logit.", "heads: class"),
        (".fusion.", "heads: fusion"),
    ):
        if piece in name:
            return part
    return "heads"


def _table(transfer: Transfer) -> Table:
    """A row for every part: how many tensors were loaded, converted, are new, were dropped."""
    outcomes: dict[str, list[str]] = {
        "loaded": list(transfer.loaded),
        "converted": list(transfer.converted),
        "new": list(transfer.new),
        "dropped": [name for name, reason in transfer.dropped.items() if reason != NOT_A_WEIGHT],
    }
    table = Table(title="tensors of each part")
    table.add_column("part")
    for outcome in outcomes:
        table.add_column(outcome, justify="right")
    table.add_column("note")
    notes = {part_of(name): change for name, change in (transfer.dropped | transfer.converted).items()}
    notes["heads: cross-attention"] = "starts as the identity"
    for part in dict.fromkeys(part_of(name) for names in outcomes.values() for name in names):
        counts = [sum(part_of(name) == part for name in names) for names in outcomes.values()]
        note = notes.get(part, "") if any(counts[1:]) else ""
        table.add_row(part, *(str(count) if count else "" for count in counts), note)
    return table


def _by_reason(dropped: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in dropped.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
