"""A learned matcher: attention over the keypoints of two photographs, after LightGlue's paper.

    network      tokens of keypoints through layers of self- and cross-attention
    assignment   what the layers say: who matches whom; the loss
    truth        who matches whom by what keypoints see
    view_set     the file of features that a training reads
    batches      pairs of views, drawn on the device
    step, run    the training; `python -m kjax.matcher` is its command
    weights      the file of a trained one

`kjax.load_matcher` and `kjax.match(…, method="learned")` of `kjax.images` use it.
"""
