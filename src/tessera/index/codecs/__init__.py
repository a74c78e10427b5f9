"""The codecs: how descriptors are coded, and how coded rows are searched."""
