"""Every bound in one place, its unit last in its name.

Bounds that a person may want to change are settings (see ``config.py``); these are the ones nobody should.
"""

from __future__ import annotations

NAME_BYTES_MAX = 200
"""Longest channel, subscription or station name; leaves room for suffixes below the usual 255 of file systems."""

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Largest atomic batch: it is one write, inside one segment."""

BATCH_MESSAGES_MAX = 100_000
"""Most messages in one atomic batch."""

PAYLOAD_DEPTH_MAX = 500
"""Most levels of a payload's JSON: half of what Python's stack has by default is left to whoever reads it."""

HEADERS_MAX = 64
"""Most user headers on one message."""

HEADER_NAME_CHARS_MAX = 64
"""Longest header name. CloudEvents asks for 20; other people's events are longer."""

KEY_BYTES_MAX = 64 * 1024
"""Longest partition key."""

ID_CHARS_MAX = 1024
"""Longest id of a message that another station may send: whoever imports has no longer ones, who publishes shorter."""

PARTITIONS_MAX = 1024
"""Most partitions of one channel: each costs a directory, and whoever reads it some open files."""

PARTITION_DIGITS = rb"0|[1-9][0-9]{0,2}|10[01][0-9]|102[0-3]"
"""The number of a partition, as lines say it: less than PARTITIONS_MAX."""

CHUNK_BYTES = 256 * 1024
"""How much of a log one pull reads: enough to decode in bulk, little enough to stay in the CPU's cache."""

INDEX_STRIDE_BYTES = 16 * 1024
"""An index entry is written whenever this much was appended since the last one."""

ROOM_AFTER_BYTES = 64 * 1024
"""A segment is given room ahead once so much is written of it (see ``log/room.py``)."""

ROOM_BYTES_MIN = 16 * 1024
"""Less room than this is not worth a write of its own."""

ROOM_APPEND_BYTES_MAX = 128 * 1024
"""Whoever appends more than this at once gets no room: it would be full at once."""

WRITE_AT_ONCE_BYTES = 1024 * 1024
"""Of an append of several times as much the disk is given so much at once, while the next is copied."""

ROOM_LINE_BYTES_MAX = 4096
"""Where no sync follows, whoever appends more than this at once gets none: one call of the system is little for it."""

ROOM_LOOK_BYTES = 64 * 1024
"""So much at a time is looked at by whoever asks how much room there is."""

ROOM_IDLE_S = 5.0
"""Room that nobody has filled for so long is taken away."""

LISTING_MIN = 20
"""A partition with so many segments is not listed for each reader that looks for its place, if nothing changed."""

LISTING_SETTLED_S = 3.0
"""That is known from the time of change, once it is so old: the clocks of some file systems are coarse."""

LISTING_SETTLED_FINE_S = 0.1
"""Or so old, where the time of change is no whole millisecond: then the clock ticks every few of them."""

LISTINGS_MAX = 64
"""Partitions of which that is remembered."""

FRAME_BYTES_MAX = 1024 * 1024
"""Largest zstd frame of a compressed segment, uncompressed."""

WAKE_CHAINS = 2
"""How many threads a group commit wakes at first; each of them wakes the next."""

LOCK_SPIN_S = 0.0005
"""How long a process tries for a contended append lock without a pause, unless its holder says when its turn ends."""

LOCK_SLEEP_S = 0.0002
"""Pause between tries once spinning was in vain."""

LOCK_RING_S = 0.0003
"""After how long whoever waits rings for a holder that has not noticed: it may be idle, and keep the lock."""

SYNC_LOOKS_MAX = 10
"""Durability ``interval``: when there was nothing to sync so many times, whoever syncs sleeps until there is."""

LOCK_OFTEN_S = 0.00025
"""Durability ``interval`` and ``os``: a process that publishes again within this time keeps the append lock meanwhile,
and asks for turns. One that does not gives it back at once: others would have to ring for it."""

LOCK_KEEP_S = 0.002
"""How long a process that has become idle keeps an append lock it was not asked for, at least."""

LOCK_LOOK_S = 0.05
"""How often is looked whether it is idle. Each look interrupts who publishes; whoever cannot wait rings."""

LOCK_LOOK_DEAF_S = 0.004
"""The same where nothing can be heard: neither inotify nor kqueue is to be had."""

LOCK_TURN_S = 0.0025
"""How long a process goes on appending after it was asked for a turn: handing over costs as much as ten appends."""

LOCK_EARLY_S = 0.0002
"""So long before a turn ends whoever waits for that is awake: a sleeping process takes its time to wake."""

LOCK_YIELD_S = 0.0005
"""How long whoever gave the lock back leaves it to whoever asked: longer than that one's pause between tries."""

LOCK_SHARED_S = 0.02
"""Durability ``always``: after being asked for the lock, a process frees it before its syncs for this long."""

TRAY_SPIN_S = 0.0001
"""How long whoever handed a message in looks for the answer without a pause; then it looks every so often."""

TRAY_WAIT_S = 0.001
"""How long it looks before it tries for the lock, and rings."""

TRAY_TRIES = 5
"""How often it does so before it waits for the lock and for nothing else."""

TRAY_EMPTY_MAX = 4096
"""After how many own messages without one in the tray the lock's holder looks there no longer."""

NEWS_ARMED_S = 1.5
"""How long a waiting reader asks other processes to write news; it asks again every second."""

ARRIVAL_REST_S = 0.0003
"""How long whoever stored a message that came alone rests when it woke a reader of this process: the reader needs the
interpreter, and nobody waits for what is left to do."""

WAIT_SLICE_S = 1.0
"""Readers look again this often, whatever the news say."""

WAITERS_MAX = 1000
"""As many readers and workers of an asynchronous station wait at the same time, each in a thread; more take turns."""

BUSY_PAUSE_S = 0.005
"""Pause before an asyncio publisher that waits for room looks again."""

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""How much one group commit writes at once."""

HEAD_READ_TRIES = 2_000
"""Tries to read a consistent head before its writer is taken for dead."""

SEGMENT_BYTES_MIN = 4 * 1024
"""Smallest segment size that can be configured."""

SHARED_BATCHES = 32
"""Decoded batches a partition keeps at the most for subscribers who are behind: some 30 ms of decoding, and 30 MB."""

SHARED_BATCHES_AT_END = 4
"""The same once somebody has read everything: who is further behind is slow, and has to read for itself."""

WILDCARD_CHANNELS_MAX = 1_000
"""Most channels one wildcard subscription hears: each has a thread and some open files."""

REQUESTS_MAX = 100_000
"""Most requests of one station that wait for their replies at once."""

COPY_BYTES = 1024 * 1024
"""Buffer for whole-file work: copying, checking, compressing."""

ROUTES_MAX = 10_000
"""Combinations of channel, type and service a publisher remembers."""

CHECKED_TYPES_MAX = 10_000
"""Combinations of channel and type whose schema a publisher remembers to be in order."""

TYPE_VERSIONS_MAX = 100
"""Versions of one type's schema that a channel keeps; a type that changes more often wants a new name."""
SCHEDULE_AHEAD_DAYS_MAX = 3_660
"""How far ahead a message may be scheduled, and how long it may live: ten years. More is a slip of the unit."""

SCHEDULE_MOVE_MAX = 1_000
"""Most messages that are moved from the schedule to their channels at once."""

SCHEDULE_MOVE_BYTES_MAX = 8 * 1024 * 1024
"""How many bytes of them, at most, but for one that is larger."""

SCHEDULE_LOOK_S = 1.0
"""The dispatcher looks at the clock and into the schedule at least this often; others try for its lease."""

SCHEDULE_RETRY_S_MAX = 60.0
"""Longest pause before a scheduled message that could not be delivered is tried again."""

SCHEDULE_LATE_S = 60.0
"""A recurring schedule's firing that is later than this was missed."""

SCHEDULE_PAGE = 500
"""How many waiting messages are read at once when they are listed."""
QUEUE_LOOK_S = 1.0
"""How often a worker of a queue looks whether others died, and whether the queue's settings changed."""

QUEUE_FLUSH_S = 0.01
"""How long finished messages of a queue wait for others, to be acknowledged with them."""

QUEUE_AHEAD_S = 0.1
"""A worker of a queue takes as many messages ahead as it handles in this time."""

QUEUE_AHEAD_MAX = 512
"""Most messages that a worker of a queue takes ahead."""

QUEUE_UNSTARTED_S = 1.0
"""Messages taken ahead that were not started for so long are given back: somebody else may be free."""

QUEUE_RECEIVE_MAX = 10_000
"""Most messages of one ``receive``."""

PEM_BYTES_MAX = 16 * 1024 * 1024
"""Largest file of certificates, keys or revocation lists that is read."""

COMMON_NAME_CHARS_MAX = 64
"""Longest name in a certificate: X.509 allows no more."""

SANS_MAX = 100
"""Most names and addresses in one certificate."""

CERTIFICATE_DAYS_MAX = 36_500
"""Longest validity that is signed: a hundred years. More is a slip of the unit."""

CA_LOCK_S = 10.0
"""How long a command waits for another one that changes the same CA's revocation list."""

TLS_LOOK_S = 1.0
"""How often a running station looks whether its TLS files were replaced. A change is used at the look after it."""

LINK_HEADER_BYTES_MAX = 1024 * 1024
"""Largest header of a frame. A seen-set that does not fit is told in part: what is missing is sent and not stored."""

LINK_FRAME_BYTES_MIN = 2 * 1024 * 1024
"""Every station accepts frames of this size: the largest header fits, and a batch."""

LINK_HELLO_BYTES_MAX = 64 * 1024
"""Largest first frame: until then nobody knows who it is."""

LINK_TEXT_CHARS_MAX = 1_000
"""Longest reason, message or version in a frame; longer ones are cut."""

LINK_PATTERNS_MAX = 1_000
"""Most names and patterns that a side may want, or be allowed, on one link."""

LINK_REASON_CHARS_MAX = 200
"""Longest reason for which one message was refused; longer ones are cut."""

LINK_REFUSED_MAX = 500
"""Most refused messages in one acknowledgement; more take several."""

LINK_STREAMS_MAX = 4_096
"""Most channels that one side sends on one link."""

LINK_CALLS_MAX = 256
"""Most requests of one side of a link that wait for their replies."""

LINK_SUBSCRIPTIONS_MAX = 64
"""Most groups and queues that one client works for at once."""

LINK_WORKERS_MAX = 128
"""Most runs of messages that one client handles at once, over all its workers."""

LINK_WINDOW_BYTES_MIN = 64 * 1024
"""Least that may be on its way on one stream, however many there are."""

LINK_WINDOW_BYTES_MAX = 256 * 1024 * 1024
"""Most that is sent on one stream without being acknowledged, whatever the other side grants."""

LINK_HANDSHAKE_S = 10.0
"""A link that is not established after this is closed."""

LINK_SILENT_HEARTBEATS = 3
"""After so many heartbeats without a byte the other end is taken for gone."""

RENEWALS_MAX = 2
RENEWALS_S = 3600.0
"""How often, and within which time, a channel begins a new life because one peer says it was restored."""

BATCH_LINES_MAX = 65_536
"""Most lines of one batch on a link."""

BATCH_LINK_BYTES = 256 * 1024
"""How many bytes a batch on a link has, about, unless a single message is larger."""

READ_LINK_BYTES = 1024 * 1024
"""How much of a channel is read for a link at once: several batches, for asking a thread costs as much as reading."""

BATCH_CHARGE_BYTES_MIN = 1024
"""What the smallest batch counts for its window: many small ones take memory, too."""

SEEN_SAVE_BYTES = 64 * 1024 * 1024
"""What a channel has seen is written down after this much was appended or read: so much is read after a restart."""

SEEN_LOCKED_LINES = 50_000
"""What a channel has seen is learnt under its arrivals lock if so few lines are to be read, else before it is taken."""

SEEN_GAPS_MAX = 100_000
"""Most gaps that a channel keeps: a sender may tell of any number, and nothing is lost without them."""
SPARK_SPLIT_BYTES = 32 * 1024 * 1024
"""How much of a log one Spark task reads, unless the option ``splitBytes`` says otherwise."""

SPARK_TASKS_MIN = 200
"""If there are more splits than these, small ones share a task, which takes Spark longer than reading a few lines."""

SPARK_PIECE_BYTES = 1024 * 1024
"""How much of a log becomes one Arrow batch: enough for numpy's calls not to count, little enough for a CPU's cache."""

SPARK_STAGED_S = 86_400.0
"""What Spark tasks staged and nobody published is removed after this: their query died, and did not come back."""

SPARK_APPEND_BYTES = 4 * 1024 * 1024
"""How much of what Spark tasks staged is appended at once."""

SPARK_KEPT_BYTES = 256 * 1024 * 1024
"""What a batch of Spark appends stays in memory for those who read it next, unless it is more than this."""

SPARK_CONNECT_S = 10.0
"""How long a Spark master, or a Spark Connect server, may take to answer at its address."""

SPARK_ENDED_S = 5.0
"""How long Java may take to end when a pipeline that was asked to stop has lost it."""

SPARK_LOCK_S = 600.0
"""How long one Spark job waits for another that publishes as the same query."""

SPARK_NAMES_MAX = 1_000
"""How many single batches are recognised when somebody asks for them again."""

SPARK_HUB_S = 300.0
"""How long a Spark job waits for a hub that is away, or slow."""
