"""Why a picture was found: attention maps, each token's share of the score, figures. Loads no torch."""
