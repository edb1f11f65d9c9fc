"""What a view is called in tables and in files of predictions: patient, study, view and modality."""

from typing import NamedTuple

from mm3d.data.records import Breast

KEY = ("PatientID", "StudyUID", "View")  # columns; a fourth, Modality, may be there


class Key(NamedTuple):
    """What tables and predictions are joined by."""

    patient: str
    study: str
    view: str  # with the number of a repeat, such as lcc2
    modality: str = "DBT"

    @property
    def stem(self) -> "Key":
        """The same view without the number of a repeat."""
        return self._replace(view=self.view.rstrip("0123456789"))

    @property
    def name(self) -> str:
        return " ".join(self[:3] if self.modality == "DBT" else self)


def keys_of(breast: Breast) -> list[Key]:
    """A key for each view: the one that its name spells out, otherwise the next that nobody has."""
    names = {view.name for view in breast.views}
    keys: list[Key] = []
    for view in breast.views:
        kind = (view.laterality + view.position).lower()
        numbers = ["", *map(str, range(1, 10 + len(names)))]
        options = [Key(breast.patient, breast.exam, kind + number, view.modality) for number in numbers]
        spelt = [key for key in options if key.name == view.name]
        free = [key for key in options if key.name not in names and key not in keys]
        keys.append((spelt or free)[0])
    return keys
