"""Order in a collection: copies, and photos of the same place or thing."""
