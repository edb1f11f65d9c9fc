"""The settings of a node: a TOML file."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mm3d.model.config import DeviceName, EngineName, PrecisionName
from mm3d.shared.config import check, from_dict, parse_toml
from mm3d.shared.errors import InputError

LOOPBACK = "127.0.0.1"
ResultName = Literal["measurements", "cad", "boxes", "summary"]


@dataclass(frozen=True)
class TlsSettings:
    """The files of a TLS connection, in PEM.

    Parameters
    ----------
    certificate, key : what this side shows of itself. A receiver needs them.
    authority : certificates that the other side's must be signed by. A receiver with it accepts only senders that show
        one; without it, a sender trusts what the system trusts.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        check(self)
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not path.is_file():
                raise InputError(f"{path} is not a file; give a PEM file.")

    def for_server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
        if self.certificate is None:
            raise InputError("receive.tls needs a certificate and its key.")
        if self.authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def for_client(self) -> ssl.SSLContext:
        return self._load(ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (OSError, ssl.SSLError) as error:
                raise InputError(f"{self.certificate} and its key do not go together; give a PEM pair.") from error
        return context


@dataclass(frozen=True)
class Peer:
    """Who may send.

    Parameters
    ----------
    ae_title : what it calls itself.
    address : where it calls from: an address, or a network such as 10.1.2.0/24.
    """

    ae_title: str
    address: str = LOOPBACK

    def __post_init__(self) -> None:
        check(self)
        _check_title(self.ae_title)
        try:
            ipaddress.ip_network(self.address)
        except ValueError as error:
            raise InputError(f"address = '{self.address}' must be an IP address or a network.") from error

    def is_at(self, address: str) -> bool:
        return ipaddress.ip_address(address) in ipaddress.ip_network(self.address)


@dataclass(frozen=True)
class ReceiveSettings:
    """How exams are received by C-STORE.

    Parameters
    ----------
    ae_title, address, port : what this node is called, and where it listens: on this computer only, unless told.
    peers : who may send; nobody else.
    associations : how many may send at the same time.
    seconds : after which a sender that is silent, or does not finish what it began, is sent away.
    object_megabytes : the largest object that is taken.
    free_megabytes : how much of the disk stays free; with less, senders are told to come back later.
    tls : with it, nothing is taken without TLS.
    """

    peers: tuple[Peer, ...]
    ae_title: str = "MM3D"
    address: str = LOOPBACK
    port: int = 11112
    associations: int = 10
    seconds: float = 30.0
    object_megabytes: int = 4000
    free_megabytes: int = 2000
    tls: TlsSettings | None = None

    def __post_init__(self) -> None:
        check(self)
        _check_title(self.ae_title)
        if not self.peers:
            raise InputError("peers is empty, so that nobody may send; name who may.")
        for name in ("associations", "seconds", "object_megabytes"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be above 0.")


@dataclass(frozen=True)
class WatchSettings:
    """An archive that is asked for new exams through DICOMweb.

    Parameters
    ----------
    url : of its DICOMweb, such as https://archive/dicom-web.
    days : exams of the last so many days are looked at.
    every_seconds : how often.
    user, password_file : who asks; HTTP basic authentication.
    tls : the authority that the archive's certificate is signed by, and a certificate of ours.
    """

    url: str
    days: int = 3
    every_seconds: float = 60.0
    user: str | None = None
    password_file: Path | None = None
    tls: TlsSettings = TlsSettings()

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Destination:
    """Where results are sent: by C-STORE to an AE title, or by STOW-RS to a url.

    Parameters
    ----------
    name : for messages.
    ae_title, address, port : of a DICOM node.
    url : of a DICOMweb server, instead.
    user, password_file : HTTP basic authentication.
    tls : for C-STORE: with it, by TLS. For a url: the authority of its certificate, and a certificate of ours.
    """

    name: str
    ae_title: str | None = None
    address: str = LOOPBACK
    port: int = 104
    url: str | None = None
    user: str | None = None
    password_file: Path | None = None
    tls: TlsSettings | None = None

    def __post_init__(self) -> None:
        check(self)
        if (self.url is None) == (self.ae_title is None):
            raise InputError(f"destination '{self.name}' needs either an ae_title or a url.")
        if self.ae_title is not None:
            _check_title(self.ae_title)


@dataclass(frozen=True)
class PredictionSettings:
    """How exams are predicted; as the options of `mm3d predict`."""

    weights: Path | None = None
    threshold: float | None = None
    operating_point: str | None = None
    engine: EngineName | None = None
    precision: PrecisionName = "auto"
    device: DeviceName = "auto"
    jobs: int | None = None


@dataclass(frozen=True)
class NodeSettings:
    """A node.

    Parameters
    ----------
    folder : where images, results and the queue are. They name patients: give the folder to nobody else.
    receive : by C-STORE.
    archives : asked through DICOMweb.
    destinations : where results are sent.
    send : which results: the two structured reports, presentation states with the boxes, a summary image.
    quiet_seconds : an exam counts as complete when nothing of it came for so long.
    retry_seconds : after a refusal, results are sent again after this time, then after twice as long, up to an hour.
    keep_days : images and results are removed so long after everything is done.
    predict : how exams are predicted.
    status_port : of the status page and the metrics, on this computer only; 0: there is no page.
    """

    folder: Path
    receive: ReceiveSettings | None = None
    archives: tuple[WatchSettings, ...] = ()
    destinations: tuple[Destination, ...] = ()
    send: tuple[ResultName, ...] = ("measurements", "cad", "boxes")
    quiet_seconds: float = 60.0
    retry_seconds: float = 30.0
    keep_days: float = 30.0
    predict: PredictionSettings = field(default_factory=PredictionSettings)
    status_port: int = 0

    def __post_init__(self) -> None:
        check(self)
        if self.receive is None and not self.archives:
            raise InputError("there is neither [receive] nor [[archives]]; say where exams come from.")
        names = [destination.name for destination in self.destinations]
        if len(set(names)) < len(names):
            raise InputError("two destinations have one name; give each its own.")


def read_settings(path: Path) -> NodeSettings:
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give the settings of the node.") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    return from_dict(NodeSettings, table, str(path))


def _check_title(title: str) -> None:
    if not (0 < len(title) <= 16 and title.isascii() and title.isprintable() and "\\" not in title):
        raise InputError(f"'{title}' is no AE title, which has 1 to 16 plain characters.")
