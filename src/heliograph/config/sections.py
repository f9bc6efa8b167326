"""The settings: their types, defaults, ranges and descriptions, side by side.

Checks, ``helio config`` and the test of the documentation all read them from here.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from heliograph.config.units import GIB, KIB, MIB
from heliograph.limits import PARTITIONS_MAX, SEGMENT_BYTES_MIN

Durability: TypeAlias = Literal["always", "interval", "os"]
WhenFull: TypeAlias = Literal["raise", "wait"]
OnConflict: TypeAlias = Literal["refuse", "warn", "off"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have in common."""


class Storage(Section, frozen=True, kw_only=True):
    """Where and how logs are kept."""

    data_dir: Annotated[
        str, Meta(min_length=1, description="The station's directory, relative to the current one.")
    ] = "./data"
    durability: Annotated[
        Durability,
        Meta(
            description="When a message is on disk: `always` before publish returns; `interval` within "
            "`sync_interval_ms`; `os` when the operating system likes. All three survive SIGKILL; only "
            "`always` survives a power cut."
        ),
    ] = "always"
    sync_interval_ms: Annotated[
        int, Meta(ge=1, le=600_000, description="With durability `interval`: the time between two syncs.")
    ] = 100
    room_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=64 * MIB,
            description="Room that a busy segment is given ahead, so that messages overwrite what is there: it makes "
            "syncs faster on ext4 and xfs, and writing on ext4. What is published is written twice; 0 lays none.",
        ),
    ] = 1 * MIB
    position_flush_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="How long a subscription's position may wait to be saved. What was handled in that "
            "time is delivered again after a crash; 0 saves after every batch.",
        ),
    ] = 200
    segment_bytes: Annotated[
        int,
        Meta(
            ge=SEGMENT_BYTES_MIN,
            le=1024 * GIB,
            description="A segment of this size is sealed and a new one begun.",
        ),
    ] = 64 * MIB
    segment_age_s: Annotated[
        float, Meta(ge=0, description="A segment of this age is sealed and a new one begun; 0 is never.")
    ] = 0.0
    retention_bytes: Annotated[
        int, Meta(ge=0, description="Oldest segments go when a partition is larger than this; 0 keeps all.")
    ] = 0
    retention_age_s: Annotated[
        float, Meta(ge=0, description="Segments go when their newest message is older; 0 keeps all.")
    ] = 0.0
    retention_once_read: Annotated[
        bool, Meta(description="Segments go once every durable subscription has read them.")
    ] = False
    retention_archived: Annotated[
        bool,
        Meta(description="Segments go only once the archive pipeline has them: it counts as a durable subscription."),
    ] = False
    retention_compact: Annotated[
        bool,
        Meta(
            description="Sealed segments keep only the newest message of each key; a key published without data "
            "is deleted. Messages without a key stay."
        ),
    ] = False
    tombstone_grace_s: Annotated[
        float,
        Meta(
            ge=0,
            description="With `retention_compact`: how long a message that deletes its key stays, so that slow "
            "readers see it.",
        ),
    ] = 86_400.0
    compact_dirty_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="With `retention_compact`: compaction begins when this part of the sealed bytes is new.",
        ),
    ] = 0.5
    compact_memory_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="With `retention_compact`: memory for the keys of one pass, some 200 bytes each; with more "
            "keys there are more passes.",
        ),
    ] = 64 * MIB
    holdback_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="How many bytes a lagging subscription may keep from being deleted; what is deleted "
            "unread beyond that is counted, audited and told to it. 0 is without limit.",
        ),
    ] = 0
    compress: Annotated[bool, Meta(description="Compress sealed segments with zstd; read them with `zstdgrep`.")] = (
        False
    )
    auto_create: Annotated[bool, Meta(description="Publishing to or subscribing a new channel makes it.")] = True
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=PARTITIONS_MAX,
            description="How many partitions a new channel gets that does not say how many. Channels that are there "
            "keep theirs.",
        ),
    ] = 1
    single_process: Annotated[
        bool,
        Meta(
            description="Promise that only one process opens the directory. Needed on network file systems, "
            "where locks and shared memory do not reach other hosts."
        ),
    ] = False
    open_partitions_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="How many partitions keep their files open at once; others wait closed.",
        ),
    ] = 256


class Messages(Section, frozen=True, kw_only=True):
    """What may be published."""

    max_bytes: Annotated[
        int, Meta(ge=256, le=GIB, description="The largest message, as stored, that publish accepts.")
    ] = 10_000_000
    schemas: Annotated[
        OnConflict,
        Meta(
            description="When a registered type cannot read what the channel holds under its name: `refuse` to "
            "publish, or only `warn`, once. `off` neither stores schemas nor looks at them."
        ),
    ] = "refuse"


class Publishing(Section, frozen=True, kw_only=True):
    """How publishers wait."""

    pending_bytes_max: Annotated[
        int, Meta(ge=1, description="How many bytes may wait for the disk in this process.")
    ] = 64 * MIB
    busy_timeout_s: Annotated[
        float, Meta(ge=0, description="How long to wait for a lock or for room before `Busy` is raised.")
    ] = 30.0
    when_full: Annotated[
        WhenFull,
        Meta(
            description="When `pending_bytes_max` is reached: `raise` Busy at once, or `wait` up to `busy_timeout_s`."
        ),
    ] = "raise"
    producers_max: Annotated[
        int, Meta(ge=1, description="How many producers (`station.producer`) a channel remembers; more are refused.")
    ] = 1000


class Subscribers(Section, frozen=True, kw_only=True):
    """How handlers are called; ``subscribe`` may say otherwise for one of them."""

    max_retries: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="How often a failing handler is called again before the dead letter.",
        ),
    ] = 5
    backoff_base_ms: Annotated[
        int, Meta(ge=0, description="The pause before the first retry; every further one doubles.")
    ] = 100
    backoff_max_ms: Annotated[int, Meta(ge=0, description="The longest pause between two retries.")] = 5_000
    backoff_jitter: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The part of a pause that is random, so that retries do not march in step.",
        ),
    ] = 0.2
    timeout_s: Annotated[
        float, Meta(ge=0, description="A handler that takes longer has failed; 0 lets it take its time.")
    ] = 0.0
    buffer: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="How many messages may wait for an ephemeral subscription before its `overflow` drops some.",
        ),
    ] = 10_000


class Audit(Section, frozen=True, kw_only=True):
    """The file that says who did what: ``DATA/audit/audit.jsonl``."""

    max_bytes: Annotated[int, Meta(ge=256, description="The audit file is rotated at this size.")] = 10 * MIB
    max_files: Annotated[int, Meta(ge=1, le=1_000, description="How many rotated audit files are kept.")] = 5


class Pipelines(Section, frozen=True, kw_only=True):
    """What ``helio pipeline`` knows besides the built-in pipelines."""

    files: Annotated[
        str,
        Meta(
            description="Files (.py, .yaml, .toml) and modules in which pipelines are declared, separated by commas, "
            "relative to the current directory."
        ),
    ] = ""


class Peer(Section, frozen=True, kw_only=True):
    """A station that may connect to this hub, and what it may do: nothing unless it is allowed."""

    name: Annotated[str, Meta(min_length=1, description="The name in its certificate.")]
    publish: Annotated[tuple[str, ...], Meta(description="Channels that it may send here, names and patterns.")] = ()
    subscribe: Annotated[tuple[str, ...], Meta(description="Channels that it may be sent, names and patterns.")] = ()
    relay: Annotated[
        tuple[str, ...],
        Meta(description="Stations whose messages it may pass on, names and patterns. Its own it may always send."),
    ] = ()
    reply: Annotated[
        tuple[str, ...],
        Meta(description="Channels whose requests it may answer, names and patterns. Replies to its own it may get."),
    ] = ()
    messages_per_s: Annotated[
        float, Meta(ge=0, description="So many messages a second are taken from it; more have to wait. 0: any number.")
    ] = 0.0
    bytes_per_s: Annotated[
        int, Meta(ge=0, description="So many bytes a second are taken from it; more have to wait. 0: any number.")
    ] = 0


class Hub(Section, frozen=True, kw_only=True):
    """Letting other stations connect to this one."""

    listen: Annotated[
        str, Meta(description="Where to accept stations: `HOST:PORT`, or `:PORT` for every address. Unset: nowhere.")
    ] = ""
    peers: Annotated[tuple[Peer, ...], Meta(description="The stations that may connect.")] = ()
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="How many connections are held at once; more are refused.")
    ] = 10_000
    window_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=GIB,
            description="How much of one channel may be on its way here from one station without being stored yet.",
        ),
    ] = 4 * MIB
    budget_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=64 * GIB,
            description="The same of all channels of one station together: with more channels each gets less, "
            "but 64KiB.",
        ),
    ] = 64 * MIB
    heartbeat_s: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600,
            description="How often the other end is asked whether it is there, on hub and links; after three times "
            "without an answer it is not.",
        ),
    ] = 15.0
    origins_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many lives (incarnations, each partition counted) of one station a channel remembers; "
            "of all stations ten times as many. What would be more is refused: the channel is parked on that link.",
        ),
    ] = 10_000
    forget_after_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a hub remembers how far a station has come that does not connect; 0 is for ever. "
            "Positions of this station's own `links` never expire.",
        ),
    ] = 604_800.0
    staged_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            description="How much one peer may lay aside here that is not published yet: batches of its Spark jobs. "
            "What would be more is refused, until some of it is published, dropped, or a day old.",
        ),
    ] = 8 * GIB


class Link(Section, frozen=True, kw_only=True):
    """A hub that this station connects to."""

    hub: Annotated[
        str, Meta(min_length=1, description="Its address, `HOST:PORT`. The name in its certificate must be HOST.")
    ]
    publish: Annotated[tuple[str, ...], Meta(description="Channels to send there, names and patterns.")] = ()
    subscribe: Annotated[tuple[str, ...], Meta(description="Channels to get from there, names and patterns.")] = ()
    start: Annotated[
        str,
        Meta(
            description="Where a channel of `subscribe` begins that is new here: `first`, `new`, or a time as "
            "`2026-11-15T20:30:00Z`."
        ),
    ] = "first"
    sync: Annotated[
        tuple[str, ...],
        Meta(
            description="Channels of which both sides get all that the other has, names and patterns: compared, as by "
            "`helio sync`, whenever the link comes up."
        ),
    ] = ()
    compress: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="zstd on the wire: `auto` when the line is slow and it helps; `always` where bytes are dear."),
    ] = "auto"


class Tls(Section, frozen=True, kw_only=True):
    """Who this station is to others, and whom it believes."""

    cert: Annotated[str, Meta(description="The station's certificate, a PEM file. Its name must be the station's.")] = (
        ""
    )
    key: Annotated[str, Meta(description="The certificate's private key, a PEM file that only its owner can read.")] = (
        ""
    )
    ca: Annotated[str, Meta(description="The certificate authorities that are believed, a PEM file: those alone.")] = ""
    crl: Annotated[
        str,
        Meta(
            description="Certificates that are not believed any more: a PEM file of revocation lists, one of each CA. "
            "Unset: nothing is revoked."
        ),
    ] = ""
