"""Networks that others publish: which are known, their shapes, their download."""
