"""Weights on Hugging Face's hub, such as hf://owner/name: the file model.safetensors of a repository.

`mm3d publish` writes such a repository. Only the weights file is read from it, never a program. What was downloaded
once is in the hub's cache and is used again without network.
"""

import re
from pathlib import Path

from mm3d.shared.errors import InputError

FILE = "model.safetensors"
PART = r"[A-Za-z0-9][\w.-]*"
# A Path has one slash where the name has two. Behind @ there may be a branch, a tag or a commit.
NAME = re.compile(rf"hf://?(?P<repository>{PART}/{PART})(?:@(?P<revision>[\w.-]+))?/?")
CACHED = re.compile(rf"models--(?P<owner>{PART}?)--(?P<name>{PART})")  # the folder of a repository in the hub's cache


def is_on_hub(path: Path | str) -> bool:
    """Whether a path is meant as a name on the hub."""
    return _text(path).startswith("hf:/")


def find_on_hub(path: Path | str) -> Path:
    """The weights file of a repository, from the cache if it is there, else from the hub."""
    text = _text(path)
    match = NAME.fullmatch(text)
    if match is None:
        raise InputError(f"{text} is no name on the hub; write it as hf://owner/name, or hf://owner/name@revision.")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise InputError(f"{text} needs huggingface_hub; install it with: pip install huggingface_hub.") from error
    repository, revision = match["repository"], match["revision"]
    try:
        return Path(hf_hub_download(repository, FILE, revision=revision, library_name="mm3d"))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"hf://{repository} is not in the hub's cache, and the hub cannot be reached; download it once with a "
            "network, or give a weights file."
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(f"hf://{repository} is not on the hub, or is private; check its name, or log in.") from error
    except EntryNotFoundError as error:
        raise InputError(f"hf://{repository} has no {FILE}; give a repository that 'mm3d publish' wrote.") from error
    except Exception as error:  # of the network, in many classes
        reason = type(error).__name__
        raise InputError(f"hf://{repository} cannot be downloaded ({reason}); check name and network.") from error


def name_on_hub(path: Path) -> str | None:
    """owner/name of a file in the hub's cache, with the commit; None of other files."""
    *_, folder, snapshots, commit, _ = ("", "", "", "", *path.parts)
    match = CACHED.fullmatch(folder)
    return f"{match['owner']}/{match['name']}@{commit[:7]}" if match and snapshots == "snapshots" else None


def _text(path: Path | str) -> str:
    return path.as_posix() if isinstance(path, Path) else path
