"""The event-sourced group and transaction coordinators: handlers return events and effects as values, and perform no I/O."""
