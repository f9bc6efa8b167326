"""Who decides about connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation
    from heliograph.federation.events import Called
    from heliograph.federation.terms import Terms


class Owner(Protocol):
    """Whoever has the connections: the hub, or a link."""

    def identify(self, connection: Any) -> Terms:
        """Who is it, and what is it for? CertificateError ends it."""

    async def admit(self, conversation: Conversation) -> tuple[str, str] | None:
        """Whether it may stay, after it said who it is; else a code of docs/protocol.md, and why."""

    def established(self, conversation: Conversation) -> None:
        """Both sides have welcomed each other."""

    def allowed(self, conversation: Conversation) -> None:
        """The other side changed its rules."""

    def wanting(self, conversation: Conversation) -> None:
        """The other side says what it wants to be sent."""

    def called(self, conversation: Conversation, event: Called) -> None:
        """The other side asks for something."""
