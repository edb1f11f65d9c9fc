"""A node beside a real archive: what does not come back into the study, the radiologist never sees."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from support.certificates import make_authority
from support.exams import write_exam, write_weights
from support.nodes import RunningNode, describe_node, run_node, wait_for
from support.orthanc import PLUGIN, Archive, free_ports, run_https, run_orthanc
from support.reports import run

STUDY = "1.2.826.0.1.3680043.8.498.31"
BOXES = "1.2.840.10008.5.1.4.1.1.11.1"
REPORTS = {"1.2.840.10008.5.1.4.1.1.88.33", "1.2.840.10008.5.1.4.1.1.88.50"}


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[tuple[Archive, RunningNode]]:
    """An archive that sends each study to a node when nothing of it has come for a second, also after results came;
    and this node, which returns results by C-STORE."""
    (port,) = free_ports(1)
    rule = """
        function OnStableStudy(study, tags, metadata)
          RestApiPost("/modalities/node/store", study)
        end
    """
    (tmp_path / "route.lua").write_text(rule)
    routing: dict[str, Any] = {"StableAge": 1, "LuaScripts": [str(tmp_path / "route.lua")]}
    modalities = {"node": {"AET": "MM3D", "Host": "127.0.0.1", "Port": port}}
    with run_orthanc(tmp_path / "orthanc", DicomModalities=modalities, **routing) as archive:
        store = f'[[destinations]]\nname = "archive"\nae_title = "ORTHANC"\nport = {archive.dicom}\n'
        weights = write_weights(tmp_path / "weights.safetensors")
        with run_node(describe_node(tmp_path / "node", port, weights, store)) as node:
            yield archive, node


def put(archive: Archive, *paths: Path) -> None:
    run("storescu", "--required", "-aec", "ORTHANC", "127.0.0.1", str(archive.dicom), *map(str, paths))


def predictions(node: RunningNode) -> int:
    """How often the node has predicted an exam."""
    path = node.folder / "audit.jsonl"
    return path.read_text().count('"event": "predicted"') if path.exists() else 0


def results(archive: Archive) -> dict[str, dict[str, str]]:
    return {uid: tags for uid, tags in archive.instances().items() if tags["Modality"] in ("SR", "PR")}


def test_results_come_back_into_the_study_and_late_images_replace_them(
    hospital: tuple[Archive, RunningNode], tmp_path: Path
) -> None:
    archive, node = hospital
    paths = write_exam(tmp_path / "exam", "DBT L CC", "FFDM L MLO", study=STUDY, StudyDate="20261119")
    put(archive, *paths[:1])
    wait_for(lambda: node.exams() and node.is_done(), "the prediction")
    first = results(archive)
    assert {tags["SOPClassUID"] for tags in first.values()} == REPORTS | {BOXES}
    assert {tags["StudyInstanceUID"] for tags in archive.instances().values()} == {STUDY}

    # The archive sends all of the study again, with our results in it: nothing is new, and it does not go round.
    time.sleep(5)
    assert node.is_done()
    assert predictions(node) == 1
    assert results(archive).keys() == first.keys()

    put(archive, *paths[1:])
    wait_for(lambda: node.is_done() and len(results(archive)) > len(first), "the second prediction")
    later = {uid: tags for uid, tags in results(archive).items() if uid not in first}
    assert {tags["SOPClassUID"] for tags in later.values()} >= REPORTS
    assert not {tags["SeriesInstanceUID"] for tags in later.values()} & {t["SeriesInstanceUID"] for t in first.values()}
    for uid, tags in later.items():
        if tags["Modality"] != "SR":
            continue
        (tmp_path / "later.dcm").write_bytes(archive.file(uid))
        (study,) = dcmread(tmp_path / "later.dcm").PredecessorDocumentsSequence
        named = study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID
        assert first[named]["SOPClassUID"] == tags["SOPClassUID"]
    assert node.stop() == 0
    told = (node.folder / "audit.jsonl").read_text() + node.log.read_text()
    assert "canary" not in told.lower()
    assert STUDY not in told


def test_exams_are_fetched_and_results_returned_through_dicomweb_by_https_with_a_password(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ours, others = make_authority(tmp_path / "ours"), make_authority(tmp_path / "others")
    (tmp_path / "password").write_text("hush\n")
    settings: dict[str, Any] = {
        "Plugins": [str(PLUGIN)],
        "AuthenticationEnabled": True,
        "RegisteredUsers": {"mm3d": "hush"},
    }
    with (
        run_orthanc(tmp_path / "orthanc", "mm3d:hush", **settings) as archive,
        run_https(tmp_path, archive, *ours.sign("archive")) as url,
    ):
        login = f'user = "mm3d"\npassword_file = "{tmp_path / "password"}"\n'
        known, unknown = (f'tls = {{ authority = "{one.certificate}" }}\n' for one in (ours, others))
        more = f'[[destinations]]\nname = "web"\nurl = "{url}"\n{login}{known}'
        more += f'[[destinations]]\nname = "false"\nurl = "{url}"\n{login}{unknown}'
        more += f'[[archives]]\nurl = "{url}"\nevery_seconds = 0.5\ndays = 36500\n{login}{known}'
        weights = write_weights(tmp_path / "weights.safetensors")
        with run_node(describe_node(tmp_path / "node", port, weights, more)) as node:
            put(archive, *write_exam(tmp_path / "exam", "DBT L CC", study=STUDY, StudyDate="20261119"))
            wait_for(lambda: len(results(archive)) >= 3 and node.undelivered() == 1, "the results")
            kinds = Counter(tags["SOPClassUID"] for tags in results(archive).values())
            assert kinds == dict.fromkeys((*REPORTS, BOXES), 1)
            assert {tags["StudyInstanceUID"] for tags in archive.instances().values()} == {STUDY}
            assert set(node.exams().values()) == {"predicted"}
            # Whoever answers without a certificate of the authority that we know gets nothing.
            (refused,) = wait_for(node.refused, "the refusal")
            assert (refused["destination"], refused["reason"]) == ("false", "does not answer")
            assert "hush" not in node.log.read_text()
