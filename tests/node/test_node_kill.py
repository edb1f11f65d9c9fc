"""A node that is killed: an exam that is lost then is a patient whom nobody looks at.

`make test` kills it a few times, `MM3D_KILLS=50 pytest tests/node/test_node_kill.py` 50 times while 20 exams arrive.
"""

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

from pydicom import Dataset, dcmread
from pydicom.uid import generate_uid
from support.exams import write_exam, write_weights
from support.nodes import describe_node, run_destination, run_node, send, wait_for
from support.orthanc import free_ports

from mm3d.data.datasets.folder import exam_code

KILLS = int(os.environ.get("MM3D_KILLS", "4"))
EXAMS = max(3, KILLS * 2 // 5)


def named(documents: list[Dataset]) -> set[str]:
    """The reports that these say they replace."""
    return {
        reference.ReferencedSOPInstanceUID
        for ds in documents
        for study in ds.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for reference in series.ReferencedSOPSequence
    }


def test_whenever_the_node_is_killed_every_exam_arrives_and_none_as_two(tmp_path: Path) -> None:
    port, archive = free_ports(2)
    more = f'[[destinations]]\nname = "archive"\nae_title = "ARCHIVE"\nport = {archive}\n'
    node = describe_node(tmp_path / "node", port, write_weights(tmp_path / "weights.safetensors"), more)
    studies: dict[str, int] = {generate_uid(): number for number in range(EXAMS)}
    exams = {
        study: write_exam(tmp_path / str(number), "FFDM L CC", "FFDM L MLO", study=study)
        for study, number in studies.items()
    }
    ended = threading.Event()

    def send_all() -> None:
        """As an archive does: an image is sent until it is answered with success."""
        for paths in exams.values():
            for path in paths:
                while not ended.is_set() and send(port, [path]) != [0x0000]:
                    time.sleep(0.2)
            time.sleep(1.0)

    chance = random.Random(KILLS)
    with run_destination(archive) as kept, run_node(node):
        sender = threading.Thread(target=send_all, daemon=True)
        sender.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0, 8))
                node.kill()
                node.start()
            wait_for(lambda: not sender.is_alive(), "sending", 60 + 30 * EXAMS)
            wait_for(node.is_done, "predicting and delivering", 60 + 30 * EXAMS)
        finally:
            ended.set()
    assert node.exams() == {exam_code(study): "predicted" for study in exams}
    reports: dict[tuple[str, str], dict[str, Dataset]] = defaultdict(dict)
    for ds in kept:
        if ds.Modality == "SR":
            reports[ds.StudyInstanceUID, ds.SOPClassUID].setdefault(ds.SOPInstanceUID, ds)
    assert len(reports) == 2 * EXAMS
    for (study, _), documents in reports.items():
        last = documents.keys() - named(list(documents.values()))
        assert len(last) == 1, f"{len(last)} reports of one exam stand side by side"
        evidence = documents[last.pop()].CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
        seen = {image.ReferencedSOPInstanceUID for series in evidence for image in series.ReferencedSOPSequence}
        assert seen == {dcmread(path).SOPInstanceUID for path in exams[study]}
