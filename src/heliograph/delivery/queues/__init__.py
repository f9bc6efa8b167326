"""Work queues: each message is leased to one worker and acknowledged by itself.

``decisions`` is pure; ``ledger`` books who has what (in ``engine/queuestore.py``); ``desk`` is one worker with its log
and its dead letters; above it ``queue`` pulls, and ``subscription`` calls handlers (``keeper``, ``tray``, ``crews``).
"""

from heliograph.delivery.queues.decisions import QueueSettings
from heliograph.delivery.queues.desk import Desk, Parts
from heliograph.delivery.queues.floors import Floors
from heliograph.delivery.queues.ledger import Ledger
from heliograph.delivery.queues.queue import Job, Queue
from heliograph.delivery.queues.subscription import QueueSubscription, check_queue_arguments

__all__ = [
    "Desk",
    "Floors",
    "Job",
    "Ledger",
    "Parts",
    "Queue",
    "QueueSettings",
    "QueueSubscription",
    "check_queue_arguments",
]
