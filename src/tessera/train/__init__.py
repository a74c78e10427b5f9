"""Training: a recipe goes in, a run folder with checkpoints and curves comes out. Needs the extra `train`."""
