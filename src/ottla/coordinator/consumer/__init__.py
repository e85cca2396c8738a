"""Consumer groups (KIP-848): members send heartbeats, and the coordinator decides who reads what."""
