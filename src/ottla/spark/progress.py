"""The progress of a stream, committed to a consumer group.

Owns the times of the commits, the thread that makes them, and the warnings if one fails or another query commits to the same group.
Must not know where a stream continues: that is in Spark's checkpoint. Invariants: no error here ends a query; only the end of a
query waits for a commit.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

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
"""A broker's responses to a commit by a client that is not a member of a group with members."""

METADATA_PREFIX = "ottla-spark-"
"""The prefix of the metadata in commits of this module; an id of the running query follows."""


class Progress:
    """Commits the positions of a stream to a group, for lag monitoring. Never raises: the stream continues from Spark's checkpoint,
    not from the group, so it does not depend on these commits."""

    TIMEOUT, FINAL_TIMEOUT, RETRY_PAUSE = 5.0, 30.0, 10.0
    """Seconds: the timeout of a commit, that of a query's last commit, and the pause after a failed commit."""

    CHECK_INTERVAL, MAX_CHECK_INTERVAL, CHECK_TIMEOUT = 3.0, 60.0, 1.0
    """Seconds: the first interval between checks for another query's commits, which doubles; its maximum; the timeout of a
    check."""

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

    @property
    def committed(self) -> Offsets | None:
        """The offsets of the latest commit that has succeeded."""
        return self._committed

    @property
    def has_group(self) -> bool:
        """Whether there is a group to commit to."""
        return self._group_id is not None

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def report(self, offsets: Offsets, *, final: bool = False) -> None:
        """Commit ``offsets``. ``final`` is for the last commit of a query: it ignores the pause after a failure and waits
        longer."""
        if self._group_id is None or not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._retry_at and not final:
            return
        # Not in __init__: Spark pickles readers, and each process that commits must have its own id.
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
        """Warn once if another query has committed to the group since this one's last commit. A failed check is only logged."""
        if self._committed is None or self._is_shared or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + self._check_pause
        self._check_pause = min(2 * self._check_pause, self.MAX_CHECK_INTERVAL)
        try:
            found = self._cluster.committed(self._committed, timeout=self.CHECK_TIMEOUT)
        except Exception as error:
            log.info("cannot check whether another query commits to group %r: %s", self._group_id, error)
            return
        others = sorted(
            tp
            for tp, offset in found.items()
            if offset is not None and offset.metadata.startswith(METADATA_PREFIX) and offset.metadata != self._metadata
        )
        if others:
            self._is_shared = True
            log.warning(
                "another query commits to group %r, too (%s): the group's offsets and lag are those of the last commit; give each "
                "query its own groupId",
                self._group_id,
                ", ".join(map(str, others[:3])) + (" ..." if len(others) > 3 else ""),
            )

    def _warn(self, error: Exception) -> None:
        if not isinstance(error, MEMBERSHIP_ERRORS):
            reason = with_option_names(error) if isinstance(error, errors.OttlaError) else error
            log.warning("progress was not committed to group %r, and the stream continues: %s", self._group_id, reason)
        elif not self._has_members:
            self._has_members = True
            log.warning(
                "progress is not committed to group %r while it has members, because then only they may commit; the stream "
                "continues. Set option groupId to a group that no consumer joins",
                self._group_id,
            )


class ProgressThread:
    """Commits beside the query: a coordinator that does not answer does not delay a batch. Of the positions that are reported while
    a commit is under way, the next commit has the latest ones."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._offsets: Offsets = {}
        self._tried: Offsets = {}
        self._is_final = self._is_closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_progress": self._progress}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._progress = state["_progress"]
        self._reset()

    def report(self, offsets: Offsets) -> None:
        """Commit ``offsets`` soon."""
        self._request(offsets, is_final=False)

    def finish(self, offsets: Offsets) -> None:
        """Commit ``offsets``, the last ones of a query, and wait until that has succeeded or failed."""
        if not self._request(offsets, is_final=True):
            return
        with self._changed:
            self._changed.wait_for(lambda: self._tried == offsets and not self._is_final, 2 * Progress.FINAL_TIMEOUT)

    def close(self) -> None:
        """End the thread after the commit that is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._progress.close()

    def _request(self, offsets: Offsets, *, is_final: bool) -> bool:
        if not self._progress.has_group or not offsets:
            return False
        with self._changed:
            if self._thread is None:
                try:
                    thread = threading.Thread(target=self._run, name="ottla-spark-progress", daemon=True)
                    thread.start()
                except RuntimeError as error:
                    log.warning("progress is not committed: %s", error)
                    return False
                self._thread = thread
            self._offsets, self._is_final = dict(offsets), is_final
            self._changed.notify_all()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                pause = None if self._progress.committed == self._tried else Progress.RETRY_PAUSE
                self._changed.wait_for(lambda: self._is_closed or self._is_final or self._offsets != self._tried, pause)
                if self._is_closed:
                    return
                offsets, is_final = self._offsets, self._is_final
            self._progress.report(offsets, final=is_final)
            with self._changed:
                self._tried = offsets
                if is_final and offsets == self._offsets:
                    self._is_final = False
                self._changed.notify_all()
