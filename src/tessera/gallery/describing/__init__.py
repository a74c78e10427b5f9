"""The models of a gallery, opened on first use: the descriptor's and the local features'."""
