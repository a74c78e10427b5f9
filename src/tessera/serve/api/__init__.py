"""The HTTP API: routes, what they are asked and answer, errors as problems."""
