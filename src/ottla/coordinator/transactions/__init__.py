"""The transaction coordinator: who the producer of a transactional id is, what its transaction wrote to, how it ends (KIP-98)."""
