"""mm3d: breast cancer detection in digital breast tomosynthesis with M&M-3D."""

__version__ = "0.1.0"
