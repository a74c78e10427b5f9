"""How a step changes the weights: groups and rates, precision, shared batch norm, averaging."""
