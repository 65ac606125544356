"""A clock for leases and waits, whatever happens to the machine's."""

import pytest

from diagnoser.adapters.clock import SteadyClock


class Machine:
    """Wall clock and seconds since boot."""

    def __init__(self) -> None:
        self.wall, self.boot = 1000.0, 5.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.boot)

    def after(self, seconds: float, jump: float = 0.0) -> float:
        self.boot += seconds
        self.wall += seconds + jump
        return self.clock()


def test_it_is_the_wall_clock_as_long_as_that_goes_on() -> None:
    """Nothing is added and nothing lost."""
    machine = Machine()
    assert [machine.after(1.5), machine.after(0.0), machine.after(30.0)] == [1001.5, 1001.5, 1031.5]


def test_a_jump_forward_is_followed_at_once() -> None:
    """A laptop that slept, or a clock that was late."""
    assert Machine().after(1.0, jump=600.0) == 1601.0


def test_a_jump_back_delays_nothing() -> None:
    """Ten minutes back: time goes on, a little slower, until the wall clock has caught up."""
    machine = Machine()
    assert machine.after(10.0, jump=-600.0) == pytest.approx(1009.0)
    assert machine.after(100.0) == pytest.approx(1099.0)
    for _ in range(70):
        machine.after(100.0)
    assert machine.clock() == machine.wall
