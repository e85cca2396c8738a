"""The settings of a topic: one row of the table of settings for each field.

Owns names, types, defaults, bounds and descriptions of topics' settings, which are all those of Kafka. Must not know which code
uses a setting. Invariant: a setting has an effect or says why it has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.setting import INT_MAX, LONG_MAX, LONG_MIN, ConfigType, setting as _setting

_MIB = 1 << 20
_DAY = 86_400_000

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
"""The values of ``compression.type``; ``producer``: as sent."""

POLICIES = ("delete", "compact")
"""The parts of ``cleanup.policy``."""

NO_CLEANUP = ""
"""The value of ``cleanup.policy`` with which nothing is deleted or compacted."""


_ONE_REPLICA = "each partition has one replica"
_NO_TIERS = "there is no tiered storage"
_REPLICA = "[0-9]+:[0-9]+"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic; for settings that a topic does not have, the broker's are used."""

    cleanup_policy: str = _setting(
        "cleanup.policy",
        "delete",
        "What happens to old records: delete, compact, both (delete,compact) or nothing.",
        choices=POLICIES,
        kind=ConfigType.LIST,
        broker="log.cleanup.policy",
    )
    compression_type: str = _setting(
        "compression.type", "producer", "How batches are stored; producer: as sent.", choices=CODECS, broker="compression.type"
    )
    compression_gzip_level: int = _setting(
        "compression.gzip.level",
        -1,
        "Level of gzip when the broker compresses; -1: the library's default.",
        minimum=1,
        maximum=9,
        also=-1,
        broker="compression.gzip.level",
    )
    compression_lz4_level: int = _setting(
        "compression.lz4.level",
        9,
        "Level of lz4 when the broker compresses.",
        minimum=1,
        maximum=17,
        broker="compression.lz4.level",
    )
    compression_zstd_level: int = _setting(
        "compression.zstd.level",
        3,
        "Level of zstd when the broker compresses.",
        minimum=-131_072,
        maximum=22,
        broker="compression.zstd.level",
    )
    delete_retention_ms: int = _setting(
        "delete.retention.ms",
        _DAY,
        "How long a tombstone is kept after it was first compacted.",
        broker="log.cleaner.delete.retention.ms",
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio",
        0.5,
        "Share of a compacted log that must be new before it is cleaned again.",
        maximum=1,
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = _setting(
        "min.compaction.lag.ms", 0, "Younger records are not compacted away.", broker="log.cleaner.min.compaction.lag.ms"
    )
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms",
        LONG_MAX,
        "Older records are compacted at the next check.",
        minimum=1,
        broker="log.cleaner.max.compaction.lag.ms",
    )
    segment_bytes: int = _setting(
        "segment.bytes", 1 << 30, "Size of a segment.", minimum=_MIB, maximum=INT_MAX, broker="log.segment.bytes"
    )
    segment_ms: int = _setting("segment.ms", 7 * _DAY, "Age of a segment.", minimum=1, broker="log.roll.ms")
    segment_jitter_ms: int = _setting(
        "segment.jitter.ms",
        0,
        "By how much the age of a segment may be less than `segment.ms`, so that not all logs roll at once.",
        broker="log.roll.jitter.ms",
    )
    retention_ms: int = _setting(
        "retention.ms", 7 * _DAY, "Age after which segments are deleted.", minimum=-1, broker="log.retention.ms"
    )
    retention_bytes: int = _setting(
        "retention.bytes",
        -1,
        "Size of a partition above which segments are deleted.",
        minimum=LONG_MIN,
        broker="log.retention.bytes",
    )
    file_delete_delay_ms: int = _setting(
        "file.delete.delay.ms", 60_000, "How long deleted files stay on disk.", broker="log.segment.delete.delay.ms"
    )
    index_interval_bytes: int = _setting(
        "index.interval.bytes", 4096, "Bytes between index entries.", maximum=INT_MAX, broker="log.index.interval.bytes"
    )
    segment_index_bytes: int = _setting(
        "segment.index.bytes", 10_485_760, "Size of an index.", minimum=4, maximum=INT_MAX, broker="log.index.size.max.bytes"
    )
    max_message_bytes: int = _setting(
        "max.message.bytes", 1_048_588, "The largest record batch.", maximum=INT_MAX, broker="message.max.bytes"
    )
    message_timestamp_type: str = _setting(
        "message.timestamp.type",
        "CreateTime",
        "Whether producers or the broker set the timestamps of records.",
        choices=("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's timestamp may be ahead of the broker's clock.",
        broker="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
        broker="log.message.timestamp.before.max.ms",
    )
    flush_messages: int = _setting(
        "flush.messages",
        LONG_MAX,
        "Records after which the log is forced to disk.",
        minimum=1,
        broker="log.flush.interval.messages",
    )
    flush_ms: int = _setting(
        "flush.ms",
        LONG_MAX,
        "Milliseconds that a record may wait until the log is forced to disk; no request waits for that.",
        broker="log.flush.interval.ms",
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas",
        1,
        "Replicas that must have what acks=all writes. There is one, which is enough, as in Kafka.",
        minimum=1,
        maximum=INT_MAX,
        broker="min.insync.replicas",
    )
    preallocate: bool = _setting(
        "preallocate", False, "Whether segment files are created at their full size.", no_effect="files grow as they are written"
    )
    unclean_leader_election_enable: bool = _setting(
        "unclean.leader.election.enable", False, "Whether a lagging replica may become leader.", no_effect=_ONE_REPLICA
    )
    leader_replication_throttled_replicas: str = _setting(
        "leader.replication.throttled.replicas",
        "",
        "Replicas whose leaders send at a limited rate.",
        kind=ConfigType.LIST,
        item=_REPLICA,
        no_effect=_ONE_REPLICA,
    )
    follower_replication_throttled_replicas: str = _setting(
        "follower.replication.throttled.replicas",
        "",
        "Replicas that fetch at a limited rate.",
        kind=ConfigType.LIST,
        item=_REPLICA,
        no_effect=_ONE_REPLICA,
    )
    remote_storage_enable: bool = _setting(
        "remote.storage.enable", False, "Whether segments are copied to remote storage.", choices=("false",), no_effect=_NO_TIERS
    )
    remote_log_copy_disable: bool = _setting(
        "remote.log.copy.disable", False, "Whether copying segments to remote storage is disabled.", no_effect=_NO_TIERS
    )
    remote_log_delete_on_disable: bool = _setting(
        "remote.log.delete.on.disable", False, "Whether disabling it deletes the remote segments.", no_effect=_NO_TIERS
    )
    local_retention_ms: int = _setting(
        "local.retention.ms", -2, "Age after which segments are only in remote storage.", minimum=-2, no_effect=_NO_TIERS
    )
    local_retention_bytes: int = _setting(
        "local.retention.bytes",
        -2,
        "Size of a partition above which segments are only in remote storage.",
        minimum=-2,
        no_effect=_NO_TIERS,
    )

    @property
    def compression_level(self) -> int | None:
        """The level of the codec that batches are stored with; ``None`` if it has none, or for the library's default."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level if self.compression_gzip_level > 0 else None
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
        return None

    @property
    def compacted(self) -> bool:
        """Whether only the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def expiring(self) -> bool:
        """Whether records are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Age of a segment: a segment of a compacted log must be rolled in time to be compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms
