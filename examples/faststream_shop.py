"""A FastStream application on a directory: validated arguments, a queue, dead letters, and a question.

Needs ``pip install 'heliograph[faststream]'``.
"""

import asyncio
import sys
import tempfile

from faststream import Depends, FastStream
from pydantic import BaseModel

from heliograph.faststream import AckPolicy, HeliographBroker

directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-")
broker = HeliographBroker(directory, name="host1", logger=None)
app = FastStream(broker, logger=None)
told = asyncio.Semaphore(0)


class Order(BaseModel):
    customer: str
    amount: float


class Invoice(BaseModel):
    customer: str
    total: float


def tax() -> float:
    return 0.19


@broker.subscriber("orders", name="billing", queue=True, start="first", ack_policy=AckPolicy.REJECT_ON_ERROR)
@broker.publisher("invoices")
async def bill(order: Order, tax: float = Depends(tax)) -> Invoice:
    if order.customer == "eve":
        raise ValueError("eve has no credit")  # a dead letter, at once
    return Invoice(customer=order.customer, total=order.amount * (1 + tax))


@broker.subscriber("invoices", name="bookkeeping", start="first")
async def book(invoice: Invoice) -> None:
    print(f"{invoice.customer} pays {invoice.total:.2f}")
    told.release()


@broker.subscriber("orders.dead-letter", name="collections", start="first")
async def collect(letter: dict[str, object]) -> None:
    print(f"a dead letter: {letter['error']}")
    told.release()


@broker.subscriber("prices")
async def price(amount: int) -> dict[str, int]:
    return {"price": 3 * amount}


@app.after_startup
async def shop() -> None:
    for order in [Order(customer="ada", amount=20), Order(customer="eve", amount=1)]:
        await broker.publish(order, "orders", key=order.customer)  # on disk when this returns
        await asyncio.wait_for(told.acquire(), 30)
    reply = await broker.request(14, "prices", timeout=30)
    print("asked for a price:", await reply.decode())
    app.exit()


if __name__ == "__main__":
    asyncio.run(app.run())
