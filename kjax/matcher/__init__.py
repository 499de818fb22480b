"""A learned matcher: attention over the keypoints of two images, after the LightGlue paper.

    network      tokens of keypoints through layers of self- and cross-attention
    attention    attention for CPUs and GPUs
    assignment   scores of a layer, true matches, the loss
    view_set     the file of features that a training reads
    batches      pairs of views, drawn on the device
    training     the training; `kjax train-matcher` is its command
    weights      the file of a trained matcher

`kjax.load_matcher` and `kjax.match(…, method="learned")` of `kjax.images` use it.
"""
