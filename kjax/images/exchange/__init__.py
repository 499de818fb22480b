"""Convert `kjax.images.features.Features` to and from other programs' formats.

| module            | for                                                      | first pixel |
|-------------------|----------------------------------------------------------|-------------|
| `npz`             | NumPy archives; dictionaries of LightGlue, glue-factory  | (0, 0)      |
| `hloc`            | hloc's HDF5 files of features and matches                | (0, 0)      |
| `colmap_bytes`    | COLMAP's matcher, `colmap feature_importer` (text)       | (0.5, 0.5)  |
| `colmap_database` | `colmap mapper`: keypoints and (verified) matches        | (0.5, 0.5)  |
| `colmap_program`  | COLMAP and pycolmap, run as programs                     |             |
| `outputs`         | what `kjax describe` and `kjax match` write              |             |
"""
