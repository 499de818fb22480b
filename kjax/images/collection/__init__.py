"""From a folder of images to a COLMAP database and a reconstruction, in resumable pieces."""
