"""M&M and M&M-3D as one model: fed with S slices it is M&M-3D, with S = 1 it is M&M.

Read in the order of the paper: `detector` (the whole), `backbone`, `roi_align`, `head` (Eq. 1, 3, 5), `fusion` (Eq. 6
and the ablations), `scores` (multi-instance learning), `matching` and `losses` (Eq. 7); then `weights`, `checkpoints`,
and, for large images, `pyramid` and `exported`.
"""
