"""The transaction coordinator: the producer of each transactional id, the partitions of its transaction, and its outcome
(KIP-98).
"""
