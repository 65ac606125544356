"""The collector of garbage waits while a log is read, and works again afterwards."""

import gc

import pytest

from diagnoser.diagnosis.collection_pause import collection_paused


def test_the_collector_works_again_when_the_last_reader_is_done() -> None:
    """Also where reading fails, and where somebody else had switched it off."""
    assert gc.isenabled()
    with pytest.raises(ValueError), collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    with collection_paused():
        pass
    was_enabled = gc.isenabled()
    gc.enable()
    assert not was_enabled
