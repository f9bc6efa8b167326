from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import InvalidName
from heliograph.federation.rules import Names, Rules
from heliograph.patterns import Pattern, is_pattern

WORDS = st.sampled_from(["a", "b", "*", ">"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(".".join).filter(lambda text: ">" not in text[:-1])
NAMES = [".".join(words) for n in (1, 2, 3, 4) for words in itertools.product("ab", repeat=n)]


def test_nothing_is_allowed_unless_it_is_said() -> None:
    rules = Rules("host1")
    assert "not allowed to publish 'alerts'" in rules.publishing("alerts")
    assert "not allowed to subscribe 'alerts'" in rules.subscribing("alerts")
    assert "not allowed to subscribe anything of 'sensors.>'" in rules.subscribing("sensors.>")
    assert "not allowed to relay messages of 'host2'" in rules.sending("host2.k3f9q2")


def test_names_and_patterns_allow_what_they_mean_and_no_more() -> None:
    rules = Rules("host1", publish=["alerts", "sensors.>"], subscribe=["commands.host1"], relay=["edge.*"])
    assert not rules.publishing("alerts")
    assert not rules.publishing("sensors.kitchen.temp")
    assert rules.publishing("sensors")
    assert rules.publishing("commands.host1")
    assert not rules.subscribing("commands.host1")
    assert rules.subscribing("commands.host2")
    assert not rules.subscribing("commands.>")
    assert not rules.sending("host1.k3f9q2")
    assert not rules.sending("edge.7.k3f9q2")
    assert rules.sending("edge.k3f9q2")


@pytest.mark.parametrize("channel", ["../../x", "", "a/b", "a" * 300, ".", "a..b", "a\nb", "\0"])
def test_a_name_that_could_become_a_path_is_never_allowed(channel: str) -> None:
    rules = Rules("host1", publish=[">"], subscribe=[">"])
    assert "is not a channel name" in rules.publishing(channel)
    assert "is not a channel name" in rules.subscribing(channel)


def test_dead_letters_and_replies_have_to_be_named() -> None:
    rules = Rules("host1", publish=[">"])
    assert rules.publishing("alerts.dead-letter")
    assert rules.publishing("_reply.host1")
    named = Rules("host1", publish=["*.dead-letter", "_reply.>"])
    assert not named.publishing("alerts.dead-letter")
    assert not named.publishing("_reply.host1")


@pytest.mark.parametrize("origin", ["", "host1", ".k3f9q2", "host10.k3f9q2", "host1.evil.k3f9q2"])
def test_only_the_peers_own_name_is_its_own(origin: str) -> None:
    assert Rules("host1").sending(origin)


def test_a_pattern_that_is_none_is_refused() -> None:
    assert "is not a pattern" in Rules("host1", subscribe=[">"]).subscribing("a.>.b")
    with pytest.raises(InvalidName):
        Rules("host1", publish=["a.>.b"])


@given(TEXTS, TEXTS)
def test_two_patterns_touch_if_a_name_fits_both(one: str, other: str) -> None:
    def fits(text: str, name: str) -> bool:
        return Pattern(text).matches(name) if is_pattern(text) else text == name

    both = any(fits(one, name) and fits(other, name) for name in NAMES)
    assert Names([other]).touches(one) == both
