"""Groups that change their protocol while their members continue to read, and groups with members of both protocols (KIP-848)."""
