"""Weights by their name on the hub, from a cache as huggingface_hub writes it. No test uses the network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.exams import write_weights

from mm3d.model.hub import find_on_hub, is_on_hub, name_on_hub
from mm3d.model.weights import find
from mm3d.shared.errors import InputError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fill_cache(home: Path) -> Path:
    """The cache after a download of owner/my-model: a blob, and a link to it under the name of its commit."""
    repository = home / "hub" / "models--owner--my-model"
    blob = write_weights(repository / "blobs" / "abc")
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "snapshots" / COMMIT / "model.safetensors").symlink_to(blob)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v1").write_text(COMMIT)
    return repository


PROGRAM = """
import sys
from pathlib import Path
import mm3d
print(mm3d.load("hf://owner/my-model").method.weights)
print(mm3d.load(Path("hf://owner/my-model@v1")).method.weights)  # as the command line gives it: a Path
try:
    mm3d.load("hf://owner/other")
except mm3d.InputError as error:
    print(error)
"""


def test_a_name_on_the_hub_is_found_in_its_cache(tmp_path: Path) -> None:
    fill_cache(tmp_path)
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, refused = done.stdout.splitlines()
    assert first == second == "owner/my-model@0123456"
    assert refused.startswith("hf://owner/other is not in the hub's cache, and the hub cannot be reached")


@pytest.mark.parametrize("name", ["hf://owner", "hf://../x/y", "hf://a/b/c", "hf://owner/name@"])
def test_what_is_no_name_is_refused_without_a_download(name: str) -> None:
    assert is_on_hub(Path(name))
    with pytest.raises(InputError, match="write it as hf://owner/name"):
        find(name)
    with pytest.raises(InputError, match="write it as hf://owner/name"):
        find_on_hub(Path(name))


def test_other_files_have_no_name_on_the_hub(tmp_path: Path) -> None:
    assert name_on_hub(Path("model.safetensors")) is None
    assert name_on_hub(tmp_path / "best.safetensors") is None
