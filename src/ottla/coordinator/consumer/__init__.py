"""Groups of the consumer protocol (KIP-848): members send heartbeats, and the coordinator assigns the partitions."""
