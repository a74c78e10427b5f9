"""What a run leaves behind: checkpoints, scalars, its record and its bundle."""
