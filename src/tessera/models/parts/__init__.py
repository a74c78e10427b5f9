"""What networks are made of: attention, pooling, tokenizers, refinement, whitening."""
