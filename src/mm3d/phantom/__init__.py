"""A virtual clinical trial: synthetic breasts with findings, imaged as mammograms and as tomosynthesis.

Frame of a view before it is stored, in mm: x from the chest wall towards the nipple (columns), y downwards along the
chest wall (rows; the tube moves along it), z from the detector upwards (slices). Volumes are (z, y, x).
"""
