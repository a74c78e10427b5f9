"""What an index run has to do: new, changed, moved and ignored files."""
