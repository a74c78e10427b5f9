"""What a step minimises: the network and its loss, as each task needs them."""
