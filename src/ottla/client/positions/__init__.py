"""Where a consumer reads on: commits, committed offsets, the ends of logs, and whether a position still fits its log.

Owns the OffsetCommit, OffsetFetch, ListOffsets and OffsetForLeaderEpoch requests. Must not know how records are fetched. Invariant:
a position that the application has chosen wins over every answer that comes late.
"""
