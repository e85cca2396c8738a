"""The progress of a stream, committed to a consumer group.

Owns when it is committed, and what is logged where that fails or another query commits to the same group. Must not know where a
stream continues: Spark remembers that. Invariant: nothing here ends a query.
"""

from __future__ import annotations

import logging
import time
import uuid

from ottla import errors
from ottla.spark.client_settings import with_option_names
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import Offsets

log = logging.getLogger(__name__)

MEMBERSHIP_ERRORS = (
    errors.CommitFailedError,
    errors.FencedMemberEpochError,
    errors.IllegalGenerationError,
    errors.RebalanceInProgressError,
    errors.StaleMemberEpochError,
    errors.UnknownMemberIdError,
)
"""What a broker answers to a commit from outside of a group that has members."""

METADATA_PREFIX = "ottla-spark-"
"""Begins the metadata of the offsets that are committed here; an identifier of the running query follows."""


class Progress:
    """Keeps a group's committed offsets in step with a stream, for lag monitoring. Never raises: Spark, not the group,
    remembers where the stream continues, so a commit that fails is no reason for the stream to."""

    TIMEOUT, FINAL_TIMEOUT, RETRY_PAUSE = 5.0, 30.0, 10.0
    """Seconds: for one commit, for the last one of a query, and before the next attempt after one has failed."""

    CHECK_INTERVAL, MAX_CHECK_INTERVAL, CHECK_TIMEOUT = 3.0, 60.0, 1.0
    """Seconds between the first two looks for another query's commits, which double up to the second number; and for one look."""

    def __init__(self, cluster: Cluster, group_id: str | None) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._committed: Offsets | None = None
        self._retry_at = 0.0
        self._metadata = ""
        self._is_shared = False
        self._has_members = False
        self._check_at = 0.0
        self._check_pause = self.CHECK_INTERVAL

    def report(self, offsets: Offsets, *, final: bool = False) -> None:
        """All before ``offsets`` is done with. ``final``: nothing will follow, so try in earnest."""
        if self._group_id is None or not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._retry_at and not final:
            return
        # Not in __init__: Spark pickles readers, and each process that commits must have its own.
        self._metadata = self._metadata or METADATA_PREFIX + uuid.uuid4().hex
        try:
            self._warn_if_shared()
            self._cluster.commit(offsets, metadata=self._metadata, timeout=self.FINAL_TIMEOUT if final else self.TIMEOUT)
        except Exception as error:
            self._retry_at = time.monotonic() + self.RETRY_PAUSE
            self._warn(error)
        else:
            self._committed = dict(offsets)

    def _warn_if_shared(self) -> None:
        """Warn once if another query has committed to the group since this one did. Where that cannot be seen, the commit follows
        all the same."""
        if self._committed is None or self._is_shared or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + self._check_pause
        self._check_pause = min(2 * self._check_pause, self.MAX_CHECK_INTERVAL)
        try:
            found = self._cluster.committed(self._committed, timeout=self.CHECK_TIMEOUT)
        except Exception as error:
            log.info("it is not known whether another query commits to group %r: %s", self._group_id, error)
            return
        others = sorted(
            tp
            for tp, offset in found.items()
            if offset is not None and offset.metadata.startswith(METADATA_PREFIX) and offset.metadata != self._metadata
        )
        if others:
            self._is_shared = True
            log.warning(
                "another query commits to group %r, too (%s): the group's offsets and lag are those of whichever committed last; "
                "give each query its own groupId",
                self._group_id,
                ", ".join(map(str, others[:3])) + (" ..." if len(others) > 3 else ""),
            )

    def _warn(self, error: Exception) -> None:
        if not isinstance(error, MEMBERSHIP_ERRORS):
            reason = with_option_names(error) if isinstance(error, errors.OttlaError) else error
            log.warning("progress was not committed to group %r, the stream goes on: %s", self._group_id, reason)
        elif not self._has_members:
            self._has_members = True
            log.warning(
                "progress is not committed to group %r while it has members, which alone may commit to it; the stream goes on. The "
                "query needs a group of its own, named by option groupId",
                self._group_id,
            )
