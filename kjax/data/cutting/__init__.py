"""From a photograph to patches: reading it, in grey, its keypoints, and the squares about them.

Training sets are cut here, on the host. `kjax.images` cuts photographs in use, on the device, by
the same rules: `levels` says which low-passed copy of a photograph serves a patch, and beyond its
border a photograph is repeated. Nothing here imports JAX, beside which OpenCV's SIFT is half as
fast: its memory then goes back to the system after every call.

Pixel centres are integers: the centre of the top-left pixel is (0, 0). A keypoint has a scale σ in
pixels and an orientation a in radians, clockwise on screen: the direction (cos a, sin a), x to the
right and y down. Its patch is the square of side `extent`·2σ about it whose horizontal axis follows
the orientation, so that patch pixel (u, v) of S×S looks at

    xy + t · R(a) · (u − (S−1)/2, v − (S−1)/2),    t = extent · 2σ / S.
"""
