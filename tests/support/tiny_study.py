"""A study file of seconds: two steps, eight breasts, one run that fails."""

TINY = """
title = "A tiny study"
trial = { scale = "tiny" }
width = 48
length = 96
validation = "test"
gallery = ["ffdm", "mm3d"]
remarks = ["Its size was chosen for a test."]
discussion = ["Nothing follows from it."]
runs = [
  { name = "ffdm", label = "M&M", tables = ["inference"], input = "ffdm", stage = "base", start = "dense" },
  { name = "mm3d-0", label = "M&M-3D", tables = ["inference"], stage = "none" },
  { name = "hm-0", label = "HM", tables = ["inference"], stage = "none", input = "hm", against = "mm3d-0" },
  { name = "mm3d", label = "M&M-3D", tables = ["finetuned", "data"], curve = true, seeds = [0] },
  { name = "mlp", label = "MLP-Regress", tables = ["data"], fusion = "mlp", against = "mm3d" },
  { name = "broken", label = "broken", tables = ["fusion"], annotated = 0.0, drop_unannotated = true },
  { name = "after-broken", label = "broken", tables = ["fusion"], stage = "none", start = "broken" },
]
expect = [{ statement = "M&M-3D is ahead of broken", ahead = [["mm3d", "broken"]] }]
[cohorts.train-deep]
breasts = 8
seed = 1
slices = 4
malignant = 0.5
[cohorts.test]
breasts = 8
seed = 2
slices = 2
malignant = 0.5
benign = 0.3
[cohorts.train]
source = "cohort"
of = "train-deep"
slices = 2
[training.validate]
every = 1
[training.loop]
batch = 2
save_every = 2
log_every = 2
[stages.base.model]
preset = "tiny"
[stages.base.dense]
steps = 2
batch = 2
[stages.base.loop]
steps = 2
[stages.finetune.loop]
steps = 2
"""
