"""An evaluation for people: tables, a page, progress."""
