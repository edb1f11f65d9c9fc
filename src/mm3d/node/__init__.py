"""A node of a hospital's network: receives exams, predicts them as `mm3d predict` does, and sends the results back.

`run` is the process; `receive` and `watch` bring images in; `inbox` is where they lie, `queue` what is to be done with
them; `predict` makes results, `deliver` sends them; `audit`, `status` say what was done.
"""
