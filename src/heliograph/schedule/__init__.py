"""Time: messages that wait until they are due, and schedules that publish again and again.

Both wait in ``DATA/schedule/schedule.sqlite3``; one process at a time moves what is due to its channel.
"""

from __future__ import annotations
