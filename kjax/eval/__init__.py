"""Evaluation of descriptors by the PhotoTourism and HPatches protocols.

`hpatches/` scores HPatches, `report/` draws the page; neither is imported here.
"""
