"""A matcher for one descriptor, trained on homographies of single photographs.

    kjax build-views photos --weights best --out views.npz
    kjax train-matcher --config matcher --out out/matcher

Every field is here, and any can be set from the command line: `--config.train.steps=2000`. Views of
several calls of `kjax build-views` go together: `--config.data.train="('a.npz','b.npz')"`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Every field."""
    config = ConfigDict()

    config.seed = 0  # of initial weights and of all that is drawn
    config.init = ""  # a matcher's weights file to start from; "": from chance
    config.progress = True  # show a bar
    config.tensorboard = True  # write metrics for TensorBoard too, where tensorboardX is installed

    config.model = ConfigDict()
    config.model.layers = 9  # each learns to match; using it one may stop earlier
    config.model.width = 128  # numbers in a token
    config.model.heads = 4  # of attention
    config.model.head_size = 0  # numbers in a head's queries, keys and values; 0: width / heads
    config.model.self_every = 1  # a keypoint looks at one in so many of its own photograph
    config.model.dimension = 128  # numbers in a descriptor

    config.data = ConfigDict()
    config.data.train = ("views.npz",)  # of kjax build-views
    config.data.shares = ()  # of pairs, for each file; none: every group of views is drawn as often
    config.data.validation_every = 20  # each twentieth photograph is for validation
    config.data.only_open = False  # refuse photographs that have no open licence in kjax's ledger

    config.draw = ConfigDict()  # how pairs are drawn: see kjax.matcher.batches
    config.draw.keypoints = 512  # of a view at most
    config.draw.least_keypoints = 256  # views of some pairs have as few
    config.draw.least_crop = 0.4  # shortest side of a crop, over that of the view
    config.draw.whole_share = 0.3  # of views that are not cropped
    config.draw.largest_share = 0.3  # of pairs of the largest keypoints, instead of the steadiest
    config.draw.rank_noise = 0.3  # by which weaker keypoints are taken, too
    config.draw.upright_share = 0.5  # of pairs that are turned as their photographs are
    config.draw.tilt_degrees = 8.0  # σ of how these are tilted
    config.draw.zoom_noise = 0.1  # σ of the logarithm of the side that positions are measured in

    config.optimizer = ConfigDict()  # AdamW
    config.optimizer.learning_rate = 6e-4  # after the warm-up; falls as a cosine to a hundredth
    config.optimizer.warmup_steps = 500
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0  # of the gradient

    config.train = ConfigDict()
    config.train.pairs = 64  # in a batch
    config.train.steps = 12_000
    config.train.dtype = "bfloat16"  # of the computation; parameters are float32
    config.train.attention = "auto"  # cudnn on NVIDIA GPUs where it works, otherwise xla
    config.train.steps_per_dispatch = 50  # between two looks of the host
    config.train.log_every = 100  # steps between lines of metrics
    config.train.eval_every = 2_000  # steps between validations; 0: only at the end
    config.train.eval_batches = 8  # of a validation
    config.train.checkpoint_every = 2_000  # steps between checkpoints
    config.train.keep_checkpoints = 2  # the last ones; the best is kept too
    return config.lock()
