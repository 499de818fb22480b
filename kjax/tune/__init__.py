"""Fine-tune weights on your own images: `kjax tune`.

images → `sets` (patches, some images held out) → `training` (mixed with general patches) →
`scores` (before and after) → `run`, which does one after the other and writes the report.
"""
