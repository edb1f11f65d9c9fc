"""Ask an archive through DICOMweb for exams, and fetch images that are not here."""

from collections.abc import Callable
from datetime import date, timedelta

import requests
from dicomweb_client.api import DICOMwebClient

from mm3d.node.config import WatchSettings
from mm3d.node.deliver import open_client
from mm3d.node.inbox import IMAGES, Inbox
from mm3d.shared.errors import InputError

STUDY, INSTANCE, CLASS, COUNT = "0020000D", "00080018", "00080016", "00201208"
MODALITIES = ("MG", "CT")  # of the studies that are asked for: some tomosynthesis comes as CT
ANY = (("application/dicom", "*"),)  # as it is stored, also if it is compressed


class Watcher:
    """An archive, and what was seen of it."""

    def __init__(self, settings: WatchSettings, inbox: Inbox, say: Callable[..., None]) -> None:
        self.settings, self.inbox, self.say = settings, inbox, say
        self.seen: dict[str, int] = {}  # how many objects each study had, by its UID, when all were fetched

    def look(self) -> None:
        """Fetch what is new. If the archive does not answer, the next look fetches it."""
        try:
            client = open_client(self.settings.url, self.settings)
            since = date.today() - timedelta(days=self.settings.days)
            for modality in MODALITIES:
                wanted = {"ModalitiesInStudy": modality, "StudyDate": f"{since:%Y%m%d}-"}
                for study in client.search_for_studies(search_filters=wanted, fields=["NumberOfStudyRelatedInstances"]):
                    self._fetch(client, _value(study, STUDY), int(_value(study, COUNT) or 0))
        except (requests.RequestException, OSError, ValueError, KeyError, InputError):
            self.say("refused", reason="archive does not answer")

    def _fetch(self, client: DICOMwebClient, study: str, count: int) -> None:
        if count and self.seen.get(study) == count:
            return
        for found in client.search_for_instances(study, fields=["SOPClassUID"]):
            instance = _value(found, INSTANCE)
            if _value(found, CLASS) not in IMAGES or self.inbox.place(study, instance).exists():
                continue
            series = _value(found, "0020000E")
            image = client.retrieve_instance(study, series, instance, media_types=ANY)
            path = self.inbox.incoming / f"watched-{abs(hash(instance))}.dcm"
            try:
                image.save_as(path, enforce_file_format=True)
                self.say("object", kept=self.inbox.keep(path), sender="DICOMweb")
            finally:
                path.unlink(missing_ok=True)
        self.seen[study] = count


def _value(answer: dict[str, dict[str, list[str]]], tag: str) -> str:
    return str((answer.get(tag, {}).get("Value") or [""])[0])
