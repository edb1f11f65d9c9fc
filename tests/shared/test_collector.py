"""A collector that stays off would let the memory of a long run grow."""

import gc

import pytest

from mm3d.shared.collector import paused_collector


def test_the_collector_is_off_only_meanwhile() -> None:
    @paused_collector()
    def read(fail: bool) -> None:
        assert not gc.isenabled()
        with paused_collector():  # a reader may call a reader
            pass
        assert not gc.isenabled()
        if fail:
            raise KeyError

    read(fail=False)
    assert gc.isenabled()
    with pytest.raises(KeyError):
        read(fail=True)
    assert gc.isenabled()
