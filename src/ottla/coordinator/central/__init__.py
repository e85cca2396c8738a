"""The central coordinator: one elected broker coordinates all central groups, and tells their members what to read."""
