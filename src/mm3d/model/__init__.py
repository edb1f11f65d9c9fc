"""M&M and M&M-3D as one model: with S slices it is M&M-3D, with S = 1 it is M&M.

Read in the order of the paper: `detector` (the whole), `backbone`, `roi_align`, `head` (Eq. 1, 3, 5), `fusion` (Eq. 6
and the ablations), `scores` (multi-instance learning), `losses` (Eq. 7). Then come `weights` and
`import_checkpoint`. `empty`, `memory` and `engines` save memory and time; the method can be read without them.
"""
