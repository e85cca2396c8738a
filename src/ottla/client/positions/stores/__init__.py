"""Where the committed offsets of a group are stored: in Kafka, in ZooKeeper, or in both.

Owns the requests and operations of commits and look-ups, and the reactions to their errors. Must not know the order of commits, nor
who waits for them. Invariant: each commit and each look-up has exactly one outcome.
"""
