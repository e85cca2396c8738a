"""Groups that change their protocol while their members go on reading, and members of both protocols in one group (KIP-848)."""
