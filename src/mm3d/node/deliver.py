"""Send results: by C-STORE to a DICOM node, or by STOW-RS to a DICOMweb server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom import dcmread
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom import AE

from mm3d.node.config import Destination, TlsSettings, WatchSettings
from mm3d.shared.errors import InputError

SECONDS = 60.0  # for a destination to answer
TAKEN = (0x0000, 0xB000, 0xB006, 0xB007)  # success, and warnings with which the object is stored all the same


class RefusedError(Exception):
    """A destination did not take results. The text names no patient."""


def send(files: Sequence[Path], destination: Destination, caller: str) -> None:
    """Send all files, or raise RefusedError. `caller` is our AE title."""
    if destination.url is None:
        _store(files, destination, caller)
    else:
        _stow(files, destination)


def _store(files: Sequence[Path], destination: Destination, caller: str) -> None:
    datasets = [dcmread(path) for path in files]
    ae = AE(ae_title=caller)
    ae.connection_timeout = ae.acse_timeout = ae.dimse_timeout = ae.network_timeout = SECONDS
    for name in dict.fromkeys(str(ds.SOPClassUID) for ds in datasets):
        ae.add_requested_context(name, [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
    tls = (destination.tls.for_client(), destination.address) if destination.tls else None
    assert destination.ae_title is not None
    association = ae.associate(destination.address, destination.port, ae_title=destination.ae_title, tls_args=tls)
    if not association.is_established:
        raise RefusedError("does not answer, or does not accept us")
    try:
        for ds in datasets:
            try:
                status = association.send_c_store(ds).get("Status")
            except (ValueError, RuntimeError):
                raise RefusedError(f"does not take {ds.SOPClassUID.name}") from None
            if status not in TAKEN:
                answer = "nothing" if status is None else f"{status:04X}"
                raise RefusedError(f"answered {answer} to {ds.SOPClassUID.name}")
    finally:
        association.release()


def _stow(files: Sequence[Path], destination: Destination) -> None:
    assert destination.url is not None
    client = open_client(destination.url, destination)
    try:
        answer = client.store_instances([dcmread(path) for path in files])
    except requests.HTTPError as error:
        status = "an error" if error.response is None else error.response.status_code
        raise RefusedError(f"answered HTTP {status}") from None
    except (requests.RequestException, OSError):
        raise RefusedError("does not answer") from None
    failed = answer.get("FailedSOPSequence") or []
    if len(failed):
        raise RefusedError(f"did not take {len(failed)} of {len(files)} objects")


def open_client(url: str, settings: Destination | WatchSettings) -> DICOMwebClient:
    """A client that trusts what the settings say."""
    session = Session()
    tls = settings.tls or TlsSettings()
    session.verify = str(tls.authority) if tls.authority else True
    if tls.certificate:
        session.cert = (str(tls.certificate), str(tls.key)) if tls.key else str(tls.certificate)
    if settings.user is not None:
        if settings.password_file is None:
            raise InputError(f"user = '{settings.user}' needs a password_file.")
        session.auth = (settings.user, settings.password_file.read_text(encoding="utf-8").strip())
    return DICOMwebClient(url=url, session=session)


class Session(requests.Session):
    """A session that does not wait for ever, and takes no proxies and passwords from its surroundings."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        options["timeout"] = options.get("timeout") or SECONDS
        return super().request(*arguments, **options)
