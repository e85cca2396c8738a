"""The event-sourced group coordinator: decides with values, then applies events; never acts itself."""
