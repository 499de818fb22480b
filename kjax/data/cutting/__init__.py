"""Patches from photographs: reading images, detecting keypoints and cutting patches around them.

`kjax.images` cuts patches on the device by the same rules. Nothing here imports JAX: OpenCV's SIFT
is half as fast in a process that has imported it.

Pixel centres are integers: the centre of the top-left pixel is (0, 0). A keypoint has a scale σ in
pixels and an orientation a in radians, clockwise on screen: the direction (cos a, sin a), x to the
right and y down. Its patch is the square of side `extent`·2σ about it whose horizontal axis follows
the orientation, so that patch pixel (u, v) of S×S looks at

    xy + t · R(a) · (u − (S−1)/2, v − (S−1)/2),    t = extent · 2σ / S.
"""

MAX_SIDE = 3200
"""Default maximum side: larger photographs are reduced for detection, as in COLMAP."""
