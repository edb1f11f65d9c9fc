"""The images of a node, on disk: a folder for each exam, by its code, and a file for each object, by a hash of its UID.

FOLDER/incoming/                  what is being received
FOLDER/exams/CODE/images/*.dcm    what was received
FOLDER/exams/CODE/results/N/      results; N is the version of the exam, see queue.py
"""

import filecmp
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydicom.dataset import Dataset

from mm3d.data.datasets.folder import exam_code
from mm3d.data.dicom.header import read_dataset
from mm3d.data.dicom.kinds import CAPTURES, CT, MAMMOGRAPHY, PROJECTIONS, RADIOGRAPHY, TOMOSYNTHESIS
from mm3d.node.queue import Queue, Taken
from mm3d.output.sr.document import NAME
from mm3d.shared.errors import InputError
from mm3d.shared.files import finish_file

# What an exam can be made of. Other objects of a study, such as reports, are not kept: this is no archive.
IMAGES = frozenset((TOMOSYNTHESIS, *MAMMOGRAPHY, *PROJECTIONS, *RADIOGRAPHY, CT, *CAPTURES))
NEEDED = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "Manufacturer", "Modality")
Kept = Literal["new", "same", "no image"]


@dataclass(frozen=True)
class Inbox:
    """Where images are put, and taken from."""

    folder: Path
    queue: Queue
    quiet: float  # seconds
    lock: threading.RLock  # a version of an exam has all its images: nobody takes it while one is being added

    @property
    def incoming(self) -> Path:
        return self.folder / "incoming"

    def images(self, code: str) -> Path:
        return self.folder / "exams" / code / "images"

    def results(self, code: str, version: int) -> Path:
        return self.folder / "exams" / code / "results" / str(version)

    def place(self, study: str, instance: str) -> Path:
        """Where the image of this UID is, or would be."""
        return self.images(exam_code(study)) / f"{hashlib.sha256(instance.encode()).hexdigest()[:32]}.dcm"

    def keep(self, path: Path) -> Kept:
        """Put a file of `incoming` in its place. When this returns, it is on disk, and its exam in the queue.

        An object that is there already is replaced if it differs. A file without UIDs is refused.
        """
        header = read_uids(path)
        if not is_image(header):
            return "no image"
        place = self.place(header.StudyInstanceUID, header.SOPInstanceUID)
        if place.exists() and filecmp.cmp(path, place, shallow=False):
            return "same"
        _sync_file(path)  # before the lock, so that several are written at once
        with self.lock:
            place.parent.mkdir(parents=True, exist_ok=True)
            # First the queue: if the node is killed in between, the exam is predicted once too often, and not never.
            self.queue.receive(exam_code(header.StudyInstanceUID), time.time(), self.quiet)
            finish_file(path, place)
        return "new"

    def take(self) -> Taken | None:
        """The exam to predict now."""
        with self.lock:
            return self.queue.take(time.time())

    def recover(self) -> None:
        """After a start: remove what was half received, and find exams that are not in the queue."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(parents=True)
        self.queue.recover()
        for images in (self.folder / "exams").glob("*/images"):
            if self.queue.received(images.parent.name) is None and any(images.iterdir()):
                self.queue.receive(images.parent.name, time.time(), self.quiet)

    def free(self) -> int:
        """Bytes that are free on the disk."""
        return shutil.disk_usage(self.folder).free

    def remove_old(self, days: float) -> Iterator[str]:
        """Remove images and results of exams that have been done for so many days. Their rows stay."""
        for code in self.queue.old(time.time() - 86_400 * days):
            folder = self.folder / "exams" / code
            with self.lock:
                if folder.exists() and code in self.queue.old(time.time() - 86_400 * days):
                    shutil.rmtree(folder)
                    yield code


def read_uids(path: Path) -> Dataset:
    """What says where an object belongs; an object that does not say it is refused."""
    header = read_dataset(path, NEEDED)
    if not all(header.get(name) for name in NEEDED[:3]):
        raise InputError("an object has no UIDs of its class, itself and its study; export it again.")
    return header


def is_image(header: Dataset) -> bool:
    """Whether an object may be an image to look at. A summary that mm3d wrote comes back, and is not."""
    return header.SOPClassUID in IMAGES and not (header.get("Manufacturer") == NAME and header.get("Modality") != "MG")


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
