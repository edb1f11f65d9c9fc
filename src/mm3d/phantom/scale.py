"""How fine a trial is: one breast, three sizes of its images."""

from dataclasses import dataclass

FIELD = (270.27, 207.9)  # mm, rows and columns of the detector: 2457 x 1890 pixels of 0.11 mm


@dataclass(frozen=True)
class Scale:
    """Sizes in mm."""

    pixel: float  # of the detector and of the reconstructed slices
    slice: float  # between slices; the breast's own voxels are as high
    latent: float  # voxel of the tissue that both views share; finer structure is each view's own

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of an image."""
        return round(FIELD[0] / self.pixel), round(FIELD[1] / self.pixel)


SCALES = {
    "tiny": Scale(pixel=2.5, slice=4.0, latent=2.5),  # for tests
    "mini": Scale(pixel=0.8, slice=1.0, latent=1.0),  # for training on two cores
    "full": Scale(pixel=0.11, slice=1.0, latent=1.0),  # as a scanner writes it
}
