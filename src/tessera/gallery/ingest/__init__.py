"""From sources to rows: find files, read them, describe what is new, store it in small batches."""
