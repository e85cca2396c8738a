"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and a leader that computes the assignment."""
