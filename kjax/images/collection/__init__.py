"""Image collections: from a folder of images to a COLMAP database and a reconstruction.

Work is split into pieces named by their inputs: the features of an image, the matches of a pair,
the geometries of a block of pairs. Finished pieces are kept and reused, so a killed run resumes
where it stopped and ends with the same result.
"""
