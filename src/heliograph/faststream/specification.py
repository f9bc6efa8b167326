"""What AsyncAPI documents say about subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.utils.path import Address
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec


@dataclass(kw_only=True)
class Read(SubscriberSpecificationConfig):
    """A subscriber's part of the document."""

    address: Address


@dataclass(kw_only=True)
class Written(PublisherSpecificationConfig):
    """A publisher's part of the document."""

    channel: str


class ReadSpecification(SubscriberSpecification[BrokerConfig, Read]):
    """Describes a subscriber."""

    @property
    def channel_labels(self) -> list[str]:
        """Its channel, as it was declared: ``logs.{level}``."""
        return [self.config.address.add_prefix(self._outer_config.prefix).template]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Its channel, and what its handlers take."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        spec = SubscriberSpec(
            address=self.channel_labels[0],
            description=self.description,
            operation=Operation(message=message, bindings=None),
            bindings=None,
        )
        return {self.name: spec}


class WrittenSpecification(PublisherSpecification[BrokerConfig, Written]):
    """Describes a publisher."""

    @property
    def channel(self) -> str:
        """Where it publishes."""
        return f"{self._outer_config.prefix}{self.config.channel}"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.config.title_ or f"{self.channel}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Its channel, and what is published there."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        spec = PublisherSpec(
            address=self.channel,
            description=self.config.description_,
            operation=Operation(message=message, bindings=None),
            bindings=None,
        )
        return {self.name: spec}
