"""From the log to the handler: retries, dead letters, positions, and the loop that carries it all out.

Pure decisions (``retry``, ``window``, ``overflow``, ``lane``) stand apart from what carries them out
(``loop``, ``lanes``, ``tasks``, ``workers``, ``positions``).
"""

from heliograph.delivery.deadletter import (
    DEAD_LETTER_TYPE,
    DeadLetterIdentity,
    dead_letter_channel,
    identity_of,
)
from heliograph.delivery.lookout import Lookout
from heliograph.delivery.positions import Flusher
from heliograph.delivery.retry import Retry
from heliograph.delivery.starting import start_subscription
from heliograph.delivery.statistics import Histogram, LatencyStats, SubscriptionStats
from heliograph.delivery.subscription import Subscription

__all__ = [
    "DEAD_LETTER_TYPE",
    "DeadLetterIdentity",
    "Flusher",
    "Histogram",
    "LatencyStats",
    "Lookout",
    "Retry",
    "Subscription",
    "SubscriptionStats",
    "dead_letter_channel",
    "identity_of",
    "start_subscription",
]
