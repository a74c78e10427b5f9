"""Which images make a step, and how they are read: samplers, the loader, the inputs of the network."""
