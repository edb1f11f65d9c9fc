"""The door of a node: who gets in, what is kept, and what hostile or broken senders can do to others."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydicom.uid import ComprehensiveSRStorage, generate_uid
from support.certificates import Authority, make_authority
from support.dicom_files import breast, mammogram, write
from support.nodes import send, wait_for
from support.orthanc import free_ports

from mm3d.node.config import Peer, ReceiveSettings, TlsSettings
from mm3d.node.inbox import Inbox
from mm3d.node.queue import Queue
from mm3d.node.receive import Receiver

SENDER = Peer("SENDER")


class Door:
    """A receiver, what it keeps and what it tells."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.queue = Queue(folder / "queue.sqlite")
        self.inbox = Inbox(folder, self.queue, 0.0, threading.RLock())
        self.inbox.recover()
        self.told: list[dict[str, Any]] = []
        given: dict[str, Any] = {"peers": (SENDER,), "free_megabytes": 1, "seconds": 2.0} | settings
        self.receiver = Receiver(ReceiveSettings(port=self.port, **given), self.inbox, self.tell)

    def tell(self, event: str, **details: Any) -> None:
        self.told.append({"event": event} | details)

    def kept(self) -> list[Path]:
        return sorted(self.inbox.folder.glob("exams/*/images/*.dcm"))

    def is_clean(self) -> bool:
        """Whether nothing is left of what was not kept."""
        return not list(self.inbox.incoming.iterdir())


@contextmanager
def open_door(folder: Path, **settings: Any) -> Iterator[Door]:
    door = Door(folder, **settings)
    with door.receiver:
        yield door
    door.queue.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as opened:
        yield opened


def image(**fields: Any) -> Any:
    return mammogram(breast(60, 50), **fields)


# ---- what is kept --------------------------------------------------------------------------------------------------


def test_what_is_answered_with_success_is_on_disk_and_in_the_queue(door: Door) -> None:
    ds = image()
    assert send(door.port, [ds]) == [0x0000]
    (path,) = door.kept()
    assert path == door.inbox.place(ds.StudyInstanceUID, ds.SOPInstanceUID)
    from pydicom import dcmread

    assert dcmread(path) == ds
    taken = door.inbox.take()
    assert taken is not None
    assert door.inbox.images(taken.exam) == path.parent
    assert "anary" not in str(path)
    assert ds.SOPInstanceUID not in str(path)
    assert door.is_clean()


def test_the_same_image_twice_is_not_predicted_twice_and_another_one_is(door: Door) -> None:
    ds = image()
    assert send(door.port, [ds, ds]) == [0x0000, 0x0000]
    assert [told["kept"] for told in door.told] == ["new", "same"]
    taken = door.inbox.take()
    assert taken is not None
    assert taken.version == 1
    ds.PatientID = "CORRECTED"
    assert send(door.port, [ds]) == [0x0000]
    assert len(door.kept()) == 1
    door.queue.finish(taken, 1.0, [], time.time())
    again = door.inbox.take()
    assert again is not None
    assert again.version == 2


def test_reports_and_our_own_pictures_are_answered_and_not_kept(door: Door) -> None:
    """A routing rule sends whole studies, also with the results that we have just put there: that must not go round."""
    report, picture = image(Modality="SR"), image(Modality="OT", Manufacturer="mm3d")
    report.SOPClassUID = report.file_meta.MediaStorageSOPClassUID = ComprehensiveSRStorage
    assert send(door.port, [report, picture]) == [0xB006, 0xB006]
    assert door.kept() == []
    assert door.inbox.take() is None


def test_an_object_that_does_not_say_of_which_study_it_is_is_refused(door: Door) -> None:
    ds = image()
    del ds.StudyInstanceUID
    assert send(door.port, [ds]) == [0xC000]
    assert door.kept() == []
    assert door.is_clean()


def test_after_a_crash_images_without_a_row_are_found_and_half_an_image_is_gone(tmp_path: Path) -> None:
    with open_door(tmp_path) as door:
        assert send(door.port, [image()]) == [0x0000]
    (tmp_path / "queue.sqlite").unlink()
    (tmp_path / "incoming" / "half.dcm").write_bytes(b"half")
    with open_door(tmp_path) as door:
        assert door.inbox.take() is not None
        assert door.is_clean()


# ---- who gets in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peers", "caller", "called"),
    [
        ((SENDER,), "STRANGER", "MM3D"),
        ((SENDER,), "SENDER", "OTHER"),
        ((Peer("SENDER", "10.0.0.0/8"), Peer("LOCAL")), "SENDER", "MM3D"),  # its title at another's address
        ((Peer("SENDER", "10.0.0.0/8"),), "SENDER", "MM3D"),
    ],
)
def test_strangers_are_sent_away(peers: tuple[Peer, ...], caller: str, called: str, tmp_path: Path) -> None:
    with open_door(tmp_path, peers=peers) as door:
        assert send(door.port, [image()], caller, ae_title=called) == []
        assert door.kept() == []
        assert caller not in str(door.told)  # whatever a stranger calls itself


def test_it_listens_on_this_computer_only_unless_told() -> None:
    assert ReceiveSettings((SENDER,)).address == "127.0.0.1"


def tls_of(authority: Authority, name: str) -> TlsSettings:
    certificate, key = authority.sign(name)
    return TlsSettings(certificate, key, authority.certificate)


def test_tls_takes_who_shows_a_certificate_of_the_authority_and_nobody_else(tmp_path: Path) -> None:
    ours, others = make_authority(tmp_path / "ours"), make_authority(tmp_path / "others")
    with open_door(tmp_path / "node", tls=tls_of(ours, "node")) as door:

        def attempt(settings: TlsSettings | None) -> list[int | None]:
            options: dict[str, Any] = {} if settings is None else {"tls_args": (settings.for_client(), "127.0.0.1")}
            return send(door.port, [image()], **options)

        assert attempt(tls_of(ours, "sender")) == [0x0000]
        foreign_certificate, foreign_key = others.sign("stranger")
        assert attempt(TlsSettings(foreign_certificate, foreign_key, ours.certificate)) == []
        assert attempt(TlsSettings(authority=ours.certificate)) == []  # shows none
        assert attempt(TlsSettings(authority=others.certificate)) == []  # does not trust us
        assert attempt(None) == []
        assert attempt(tls_of(ours, "sender")) == [0x0000]
        assert len(door.kept()) == 2


# ---- limits --------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_politely_and_forgotten_when_there_is_room(door: Door, monkeypatch: Any) -> None:
    monkeypatch.setattr(Inbox, "free", lambda _: 100_000_000)
    object.__setattr__(door.receiver.settings, "free_megabytes", 200)
    assert send(door.port, [image()]) == [0xA700]
    assert door.kept() == []
    assert door.is_clean()
    object.__setattr__(door.receiver.settings, "free_megabytes", 1)
    assert send(door.port, [image()]) == [0x0000]


def test_an_object_that_is_too_large_is_broken_off(tmp_path: Path) -> None:
    with open_door(tmp_path, object_megabytes=1) as door:
        assert send(door.port, [mammogram(breast(2000, 1500))]) == [None]
        wait_for(door.is_clean, "cleaning up", 10)
        assert send(door.port, [image()]) == [0x0000]


def test_the_number_of_senders_is_limited(tmp_path: Path) -> None:
    from pynetdicom import AE
    from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

    with open_door(tmp_path, associations=2) as door:
        ae = AE("SENDER")
        ae.add_requested_context(Verification)
        open_ones = [ae.associate("127.0.0.1", door.port, ae_title="MM3D") for _ in range(3)]
        assert [one.is_established for one in open_ones] == [True, True, False]
        assert open_ones[0].send_c_echo().Status == 0x0000
        for one in open_ones[:2]:
            one.release()
        wait_for(lambda: send(door.port, [image()]) == [0x0000], "a free place", 10)


# ---- hostile senders -----------------------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def request() -> bytes:
    """A good request for an association, as bytes."""
    from pynetdicom import AE
    from pynetdicom.pdu import A_ASSOCIATE_RQ
    from pynetdicom.pdu_primitives import A_ASSOCIATE, ImplementationClassUIDNotification, MaximumLengthNotification

    ae = AE("SENDER")
    ae.add_requested_context(ComprehensiveSRStorage)
    primitive = A_ASSOCIATE()
    primitive.application_context_name = "1.2.840.10008.3.1.1.1"
    primitive.calling_ae_title, primitive.called_ae_title = "SENDER", "MM3D"
    length, implementation = MaximumLengthNotification(), ImplementationClassUIDNotification()
    length.maximum_length_received, implementation.implementation_class_uid = 16_384, "1.2.3"
    primitive.user_information = [length, implementation]
    contexts = ae.requested_contexts
    contexts[0].context_id = 1
    primitive.presentation_context_definition_list = contexts
    return bytes(A_ASSOCIATE_RQ(primitive).encode())


def say_nothing(port: int) -> Iterator[socket.socket]:
    yield connect(port)


def stop_in_the_middle(port: int) -> Iterator[socket.socket]:
    one = connect(port)
    one.sendall(request()[:50])
    yield one


def lie_about_lengths(port: int) -> Iterator[socket.socket]:
    for length in (0, 5, 2**31, 2**32 - 1):
        one = connect(port)
        one.sendall(b"\x01\x00" + struct.pack(">L", length) + request()[6:])
        yield one


def send_noise(port: int) -> Iterator[socket.socket]:
    import random

    chance, good = random.Random(1), request()
    for _ in range(40):
        broken = bytearray(good)
        for _ in range(chance.randint(1, 30)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        one = connect(port)
        one.sendall(bytes(broken) + chance.randbytes(200))
        yield one


def send_noise_after_the_handshake(port: int) -> Iterator[socket.socket]:
    import random

    chance = random.Random(2)
    for _ in range(20):
        one = connect(port)
        one.sendall(request())
        one.recv(4096)
        value = b"\x01" + chance.choice((b"\x00", b"\x02", b"\x03", b"\xff")) + chance.randbytes(60)
        one.sendall(b"\x04\x00" + struct.pack(">LL", len(value) + 4, chance.choice((len(value), 2**32 - 1))) + value)
        yield one


def drip(port: int) -> Iterator[socket.socket]:
    """A byte now and then keeps a naive reader for ever."""
    one = connect(port)
    for byte in request()[:6]:
        one.sendall(bytes((byte,)))
        time.sleep(0.1)
    yield one


def come_in_hundreds(port: int) -> Iterator[socket.socket]:
    for _ in range(200):
        yield connect(port)


@pytest.mark.parametrize(
    "attack",
    [
        say_nothing,
        stop_in_the_middle,
        lie_about_lengths,
        send_noise,
        send_noise_after_the_handshake,
        drip,
        come_in_hundreds,
    ],
)
def test_hostile_senders_do_not_stop_others(attack: Callable[[int], Iterator[socket.socket]], tmp_path: Path) -> None:
    with open_door(tmp_path, associations=300, seconds=1.0) as door:
        sockets = []
        try:
            for one in attack(door.port):
                sockets.append(one)
            wait_for(lambda: send(door.port, [image(StudyInstanceUID=generate_uid())]) == [0x0000], "an answer", 30)
            # Nobody keeps a connection by holding on to it.
            wait_for(lambda: not door.receiver.server.active_associations, "the end of all connections", 30)
        finally:
            for one in sockets:
                one.close()
        assert door.is_clean()


def test_a_connection_that_is_cut_in_an_object_leaves_nothing(door: Door, tmp_path: Path) -> None:
    """A proxy that forwards the beginning of a large object, and then cuts the line."""
    (outside,) = free_ports(1)
    server = socket.create_server(("127.0.0.1", outside))

    def forward() -> None:
        theirs, _ = server.accept()
        ours = connect(door.port)

        def back() -> None:
            while data := ours.recv(65_536):
                theirs.sendall(data)

        thread = threading.Thread(target=lambda: _quietly(back), daemon=True)
        thread.start()
        total = 0
        while total < 300_000 and (data := theirs.recv(65_536)):
            ours.sendall(data)
            total += len(data)
        ours.close()
        theirs.close()

    threading.Thread(target=forward, daemon=True).start()
    path = write(mammogram(breast(1000, 800)), tmp_path / "large" / "large.dcm")
    assert send(outside, [path]) == [None]
    server.close()
    wait_for(door.is_clean, "cleaning up", 10)
    assert door.kept() == []
    assert send(door.port, [path]) == [0x0000]


def _quietly(work: Callable[[], None]) -> None:
    with suppress(OSError):
        work()
