"""`mm3d convert`: findings from one kind of file to another."""

from collections.abc import Callable
from pathlib import Path

from mm3d.output.predictions import Predictions, read, write_coco, write_dbtex, write_json
from mm3d.shared.console import Console, say
from mm3d.shared.errors import InputError
from mm3d.shared.files import refuse_files


def convert(predictions: Path, output: Path) -> int:
    """Read a file of findings and write it as the name of `output` says. Returns the exit code."""
    found = read(predictions)
    write = _find_writer(output)
    refuse_files(output.parent, [output.name], "this run of 'mm3d convert'")
    write(found, output)
    count = sum(len(view.findings) for _, view in found.views())
    say(Console(), f"Wrote {output}: {count} findings of {len(list(found.views()))} views.")
    return 0


def _find_writer(output: Path) -> Callable[[Predictions, Path], None]:
    name = output.name.lower()
    for suffix, write in ((".coco.json", write_coco), (".json", write_json), (".csv", write_dbtex)):
        if name.endswith(suffix):
            return write
    raise InputError(f"{output} must end with .csv (as in DBTex), .coco.json (COCO) or .json (our own).")
