"""What a view is called in tables and in files of predictions: patient, study, view and modality."""

from typing import NamedTuple

from mm3d.data.records import Breast, Laterality, Position

SIDES: dict[str, Laterality] = {"L": "L", "R": "R", "LEFT": "L", "RIGHT": "R"}  # as tables write them
POSITIONS: dict[str, Position] = {"CC": "CC", "MLO": "MLO"}  # the views that are used
KEY = ("PatientID", "StudyUID", "View")  # columns; there may be a fourth one, Modality


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
    """A key for each view. A view whose name is that of a key has this key, others the first that no view has."""
    names = {view.name for view in breast.views}
    keys: list[Key] = []
    for view in breast.views:
        kind = (view.laterality + view.position).lower()
        kinds = [kind, *(f"{kind}{number}" for number in range(1, 10 + len(names)))]
        candidates = [Key(breast.patient, breast.exam, name, view.modality) for name in kinds]
        named = next((key for key in candidates if key.name == view.name), None)
        keys.append(named or next(key for key in candidates if key.name not in names and key not in keys))
    return keys
