"""Files and forms that other programs read, from `kjax.images.features.Features` and back.

| module            | for                                                 | first pixel's centre |
|-------------------|-----------------------------------------------------|----------------------|
| `npz`             | NumPy                                               | (0, 0)               |
| `hloc`            | hloc's HDF5 files of features and of matches        | (0, 0)               |
| `lightglue`       | dictionaries of LightGlue and glue-factory          | (0, 0)               |
| `colmap_text`     | `colmap feature_importer`                           | (0.5, 0.5)           |
| `colmap_database` | `colmap mapper`: keypoints and (verified) matches   | (0.5, 0.5)           |
| `matched_pair`    | NumPy or hloc: the matches of `kjax match`          | (0, 0)               |

`colmap_bytes` is what COLMAP's own matcher compares, `provenance` what these files say they were
made with, `outputs` what `kjax describe` fills.
"""
