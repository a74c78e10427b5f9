"""The systems that the paper compares with, and the networks that others released."""
