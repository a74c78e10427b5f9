"""What the service says of itself: log lines and counters."""
