"""What a handler may ask for by annotation: ``async def handle(body: Order, message: HeliographMessage)``."""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from heliograph.aio import AsyncStation
from heliograph.faststream import broker, message

__all__ = ["ContextRepo", "HeliographBroker", "HeliographMessage", "Logger", "NoCast", "Station"]

HeliographBroker = Annotated[broker.HeliographBroker, Context("broker")]
HeliographMessage = Annotated[message.HeliographMessage, Context("message")]
Station = Annotated[AsyncStation, Context("broker.station")]
