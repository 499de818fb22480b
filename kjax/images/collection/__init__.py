"""Many photographs at once: from a folder to COLMAP's database, and to a reconstruction.

Work is cut into pieces that are named by what goes into them: the features of a photograph, the
matches of a pair, the geometries of a block of pairs. A piece that is there is never made again, so
a run that was killed goes on, and ends as if nothing had happened.
"""
