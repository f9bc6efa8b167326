from __future__ import annotations

import pytest

from heliograph.federation.heartbeat import Heartbeat, Pulse


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_idle_line_is_asked_every_heartbeat_and_stays_up(clock: Clock) -> None:
    beat = Heartbeat(10.0, clock)
    for _ in range(100):
        assert clock.now < beat.deadline() <= clock.now + 10.0
        clock.now = beat.deadline()
        assert beat.look() is Pulse.PING
        nonce = beat.ping()
        clock.now += 0.25
        beat.heard()
        assert beat.pong(nonce)
        assert beat.round_trip_s == 0.25
        assert beat.look() is Pulse.WAIT


def test_three_heartbeats_of_silence_are_the_end(clock: Clock) -> None:
    beat = Heartbeat(10.0, clock)
    clock.now += 10.0
    assert beat.look() is Pulse.PING
    beat.ping()
    assert beat.deadline() == 130.0
    clock.now = 129.0
    assert beat.look() is Pulse.WAIT
    clock.now = 130.0
    assert beat.look() is Pulse.GONE


def test_whatever_arrives_is_a_sign_of_life(clock: Clock) -> None:
    beat = Heartbeat(10.0, clock)
    beat.ping()
    for _ in range(50):
        clock.now += 9.0
        beat.heard()
        assert beat.look() is Pulse.WAIT


def test_a_process_that_stood_still_itself_reads_first_what_came_meanwhile(clock: Clock) -> None:
    beat = Heartbeat(10.0, clock)
    clock.now += 3600.0
    assert beat.look() is not Pulse.GONE
    clock.now += 9.0
    assert beat.look() is not Pulse.GONE
    clock.now += 1.0
    assert beat.look() is Pulse.GONE


def test_only_the_answer_that_is_waited_for_counts(clock: Clock) -> None:
    beat = Heartbeat(10.0, clock)
    assert not beat.pong(0)
    nonce = beat.ping()
    assert not beat.pong(nonce + 1)
    assert beat.pong(nonce)
    assert not beat.pong(nonce)
