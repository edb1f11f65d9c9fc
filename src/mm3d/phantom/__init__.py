"""A virtual clinical trial: synthetic breasts with lesions, imaged as mammograms and as tomosynthesis.

The way of a breast: `anatomy` (its outside), `tissue` (its inside), `lesions`, `imaging`, `processing` (grey values),
`annotations` (boxes and visible slices), `trial` (all of it together), `dicom`, `run` (the folder).

The frame of a view before it is stored, in mm: x from the chest wall towards the nipple (columns), y downwards along
the chest wall (rows; the tube moves along y), z from the detector upwards (slices). Volumes are (z, y, x).
"""
