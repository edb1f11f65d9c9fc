"""C-STORE: senders that are allowed bring images; nobody else gets further than the door.

pynetdicom speaks the protocol. What it leaves open is closed here: where a connection comes from, how many there are,
how long a message may take, and how large it may be.
"""

import functools
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pynetdicom import AE, _config, dimse_messages, evt
from pynetdicom.presentation import AllStoragePresentationContexts
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]
from pynetdicom.transport import AssociationSocket, RequestHandler, ThreadedAssociationServer

from mm3d.data.dicom.meta import COMPRESSED, NATIVE
from mm3d.node.config import Peer, ReceiveSettings
from mm3d.node.inbox import Inbox
from mm3d.shared.errors import FULL, InputError

SUCCESS, NOT_KEPT, NO_ROOM, NOT_UNDERSTOOD = 0x0000, 0xB006, 0xA700, 0xC000
REFUSED_CALLER = (0x01, 0x01, 0x03)  # rejected for good, by the user: calling AE title not recognised
REFUSED_CALLED = (0x01, 0x01, 0x07)
LARGEST_PDU = 1_048_576  # bytes; we offer a quarter of it, and nobody needs more
OFFERED_PDU = 262_144
MEGABYTE = 1_000_000
WAITING = 100  # connections beyond the number of associations that are answered that there are too many
EMERGENCY = 50 * MEGABYTE  # with less free, what is being received is broken off: the queue needs room


class Socket(AssociationSocket):
    """A connection on which a message has a time limit and a largest size. pynetdicom waits for ever, for anything."""

    seconds = 30.0

    def recv(self, nr_bytes: int) -> bytearray:
        if nr_bytes > LARGEST_PDU:
            raise OSError("a message is too long")
        assert self.socket is not None
        data, read, deadline = bytearray(nr_bytes), 0, time.monotonic() + self.seconds
        with memoryview(data) as view:
            while read < nr_bytes:
                self.socket.settimeout(max(0.01, deadline - time.monotonic()))
                count = self.socket.recv_into(view[read:])
                if not count:
                    break
                read += count
        del data[read:]
        self.socket.settimeout(self.seconds)  # for what is sent
        return data


class Handler(RequestHandler):
    def _create_association(self) -> Any:
        association = super()._create_association()
        connection: Any = association.dul.socket
        connection.__class__ = Socket  # pynetdicom has no way to choose the class
        connection.seconds = self.ae.network_timeout
        receive = association.dimse.receive_primitive

        def receive_or_abort(primitive: Any) -> None:
            try:
                receive(primitive)
            except (
                Exception
            ):  # a message that is no DICOM: pynetdicom's thread would die of it, and leave the rest open
                association.dul.event_queue.put("Evt19")  # an invalid message, which it answers with an abort

        association.dimse.receive_primitive = receive_or_abort  # type: ignore[method-assign]
        return association


class Server(ThreadedAssociationServer):
    """Sends strangers away before they are read, and shakes hands for TLS where nobody else has to wait for it."""

    peers: tuple[Peer, ...] = ()
    request_queue_size = 64

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        known = any(peer.is_at(client_address[0]) for peer in self.peers)
        # A connection has a thread from the first byte on, and then two.
        return known and threading.active_count() < 2 * (self.ae.maximum_associations + WAITING)

    def get_request(self) -> tuple[socket.socket, Any]:
        assert self.socket is not None
        connection, address = self.socket.accept()
        connection.settimeout(self.ae.network_timeout)
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.ssl_context is not None:
            request = self.ssl_context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake failed, or a connection was closed early: nothing to tell."""


class Receiver:
    """Receives images. Use it with `with`.

    `say` is told in sentences what was refused.
    """

    def __init__(self, settings: ReceiveSettings, inbox: Inbox, say: Callable[..., None]) -> None:
        self.settings, self.inbox, self.say = settings, inbox, say
        self.ae = AE(ae_title=settings.ae_title)
        self.ae.maximum_associations = settings.associations
        self.ae.maximum_pdu_size = OFFERED_PDU
        self.ae.acse_timeout = self.ae.dimse_timeout = self.ae.network_timeout = settings.seconds
        syntaxes = [*reversed(NATIVE), *COMPRESSED]
        for context in AllStoragePresentationContexts:
            self.ae.add_supported_context(str(context.abstract_syntax), syntaxes)
        self.ae.add_supported_context(Verification)
        # Objects go to disk while they come, into a folder of ours, and no dump of a message is ever made.
        _config.STORE_RECV_CHUNKED_DATASET = True
        _config.LOG_HANDLER_LEVEL = "none"
        temporary: Any = functools.partial(NamedTemporaryFile, dir=inbox.incoming)
        dimse_messages.NamedTemporaryFile = temporary  # type: ignore[attr-defined]

    def __enter__(self) -> "Receiver":
        settings = self.settings
        handlers: list[Any] = [
            (evt.EVT_REQUESTED, self._check_caller),
            (evt.EVT_DATA_RECV, self._check_room),
            (evt.EVT_CONN_CLOSE, self._clean_up),
            (evt.EVT_C_STORE, self._store),
        ]
        context: ssl.SSLContext | None = settings.tls.for_server() if settings.tls else None
        try:
            server: Any = self.ae.make_server(
                (settings.address, settings.port),
                ssl_context=context,
                evt_handlers=handlers,
                server_class=Server,
                request_handler=Handler,
            )
        except OSError as error:
            raise InputError(
                f"{settings.address}, port {settings.port} cannot be listened at ({error.strerror}); choose another."
            ) from error
        server.peers = settings.peers
        self.server = server
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        socketserver.BaseServer.shutdown(self.server)
        self.server.server_close()
        for association in self.server.active_associations:
            association.abort()

    def _check_caller(self, event: Any) -> None:
        """Reject who is not allowed: by its AE title at its address, and by the title that it calls."""
        association = event.assoc
        caller = association.requestor
        request = caller.primitive
        title, address = request.calling_ae_title.strip(), caller.address
        if not any(peer.ae_title == title and peer.is_at(address) for peer in self.settings.peers):
            association.acse.send_reject(*REFUSED_CALLER)
        elif request.called_ae_title.strip() != self.settings.ae_title:
            association.acse.send_reject(*REFUSED_CALLED)
        else:
            return
        self.say("refused", reason="caller is not allowed")
        association.kill()

    def _check_room(self, event: Any) -> None:
        """Break off an object that is too large, or that would fill the disk to the last byte."""
        message = event.assoc.dimse.message
        file = getattr(message, "_data_set_file", None)
        if file is None:
            return
        if file.tell() > self.settings.object_megabytes * MEGABYTE:
            self.say("refused", reason="object is too large")
        elif self.inbox.free() > EMERGENCY:
            return
        else:
            self.say("refused", reason="disk is full")
        event.assoc.abort()

    def _clean_up(self, event: Any) -> None:
        """Remove what a broken connection leaves."""
        path = getattr(event.assoc.dimse.message, "_data_set_path", None)
        if path is not None:
            Path(path).unlink(missing_ok=True)

    def _store(self, event: Any) -> int:
        """Answer an object: with success only when it is on disk."""
        path: Path = event.dataset_path
        try:
            if self.inbox.free() < self.settings.free_megabytes * MEGABYTE:
                self.say("refused", reason="disk is full")
                return NO_ROOM
            kept = self.inbox.keep(path)
        except InputError:  # its sentence may name a file of the sender
            self.say("refused", reason="object cannot be understood")
            return NOT_UNDERSTOOD
        except OSError as error:
            self.say("refused", reason="disk is full" if error.errno in FULL else "disk cannot be written")
            return NO_ROOM
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self.say("object", kept=kept, sender=event.assoc.requestor.ae_title.strip())
        return NOT_KEPT if kept == "no image" else SUCCESS
