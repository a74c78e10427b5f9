"""Networks, their parts, their registry and their bundles. Importing this room loads no torch."""
