"""Picture files: opened within limits, decoded upright, and what they say of themselves."""
