"""Data sets of photographs: folders, lists, GLDv2, Revisited Oxford and Paris, labelled things."""
