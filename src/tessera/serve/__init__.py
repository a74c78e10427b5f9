"""The service: an HTTP API over one gallery, and the page that uses it."""
