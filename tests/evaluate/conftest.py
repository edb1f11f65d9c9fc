"""A deadline of an example says nothing on a machine that does other things at the same time."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
