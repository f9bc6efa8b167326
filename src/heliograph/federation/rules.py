"""What the other end of a link may do: nothing unless it is allowed. Pure.

    publish      channels that it may send here
    subscribe    channels that it may be sent
    relay        stations whose messages it may pass on; its own it may always send
    reply        channels whose requests it may answer

Each is a list of names and patterns (``sensors.>``). Dead letters and replies are meant only by those that name them.
A peer may always be sent the replies to its own requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from heliograph.errors import InvalidName
from heliograph.limits import NAME_BYTES_MAX
from heliograph.names import REPLY_TO, check_name
from heliograph.patterns import Pattern, is_pattern

EVERYTHING: Final = ">"


class Names:
    """Names and patterns, and what they mean together.

    >>> names = Names(["alerts", "sensors.>"])
    >>> "alerts" in names, "sensors.kitchen" in names, "commands" in names
    (True, True, False)
    """

    __slots__ = ("_names", "_patterns", "_without", "texts")

    def __init__(self, texts: Iterable[str] = (), without: Collection[str] = ()) -> None:
        self._without = without
        self.texts: Sequence[str] = tuple(texts)
        self._names = frozenset(check_name(text) for text in self.texts if not is_pattern(text))
        self._patterns = [Pattern(text) for text in self.texts if is_pattern(text)]

    def __contains__(self, name: str) -> bool:
        if name in self._without:
            return False
        return name in self._names or any(pattern.matches(name) for pattern in self._patterns)

    def touches(self, text: str) -> bool:
        """Whether some channel may be meant both by these and by a name or pattern.

        >>> Names(["sensors.*.temp"]).touches("sensors.kitchen.>"), Names(["sensors.>"]).touches("alerts.*")
        (True, False)
        """
        if not is_pattern(text):
            return text in self
        return any(_meet(text.split("."), other.split(".")) for other in self.texts)

    def __repr__(self) -> str:
        return f"Names({list(self.texts)!r})"


def _meet(one: Sequence[str], other: Sequence[str]) -> bool:
    for here, there in zip(one, other, strict=False):
        if EVERYTHING in (here, there):
            return True  # each has a word left, and it stands for one or more
        if here != there and "*" not in (here, there):
            return False
    return len(one) == len(other)


class Rules:
    """What one peer may do. The answers are reasons why not; empty ones mean yes.

    >>> rules = Rules("host1", publish=["alerts"], subscribe=["commands.host1"])
    >>> rules.publishing("alerts"), rules.publishing("secrets")
    ('', "host1 is not allowed to publish 'secrets'")
    >>> rules.sending("host1.k3f9q2"), rules.sending("host2.p0p0p0")
    ('', "host1 is not allowed to relay messages of 'host2'")
    """

    __slots__ = ("_askers", "peer", "publish", "relay", "reply", "subscribe")

    def __init__(
        self, peer: str, publish: Iterable[str] = (), subscribe: Iterable[str] = (), relay: Iterable[str] = (),
        reply: Iterable[str] = (), askers: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.peer = peer
        self.publish = Names(publish)
        self.subscribe = Names(subscribe)
        self.relay = Names(relay)
        self.reply = Names(reply)
        self._askers = askers  # stations whose requests are answered by this peer, if it answers any

    def publishing(self, channel: str) -> str:
        """Why the peer may not send this channel."""
        if (
            channel.removeprefix(REPLY_TO) in self._askers
            and channel.startswith(REPLY_TO)
            and channel not in self.publish
        ):
            return "" if self.reply.texts else f"{self.peer} is not allowed to reply to anything: say what in 'reply'"
        return self._why_not(self.publish, channel, "publish")

    def answering(self, channel: str) -> str:
        """Why the peer may not answer the requests of a channel."""
        return self._why_not(self.reply, channel, "reply to")

    def subscribing(self, wanted: str) -> str:
        """Why the peer may not be sent a channel, or anything of a pattern."""
        if is_pattern(wanted):
            try:
                Pattern(wanted)
            except InvalidName as error:
                return str(error)
            may = self.subscribe.touches(wanted)
            return "" if may else f"{self.peer} is not allowed to subscribe anything of '{wanted}'"
        return "" if wanted == REPLY_TO + self.peer else self._why_not(self.subscribe, wanted, "subscribe")

    def sending(self, origin: str) -> str:
        """Why the peer may not send messages of an origin (``station.incarnation``)."""
        station = origin.rpartition(".")[0]
        if station == self.peer or (station and station in self.relay):
            return ""
        return f"{self.peer} is not allowed to relay messages of '{station[:NAME_BYTES_MAX]}'"

    def _why_not(self, names: Names, channel: str, what: str) -> str:
        try:
            check_name(channel)
        except InvalidName as error:
            return str(error)
        return "" if channel in names else f"{self.peer} is not allowed to {what} '{channel}'"
