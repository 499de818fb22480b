"""A detector of keypoints, trained on homographies of single photographs.

    kjax train-detector --config detector --out out/detector --config.data.photos=photos \
        --config.data.validation=held_out

Every field is here, and any can be set from the command line: `--config.train.steps=2000`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Every field."""
    config = ConfigDict()

    config.seed = 0  # of initial weights and of all that is drawn
    config.init = ""  # a detector's weights file to start from; "": from chance
    config.progress = True  # show a bar
    config.tensorboard = True  # write metrics for TensorBoard too, where tensorboardX is installed

    config.model = ConfigDict()
    config.model.widths = (24, 32, 48, 64)  # channels at 1/2, 1/4, … of an octave's resolution
    config.model.fine = 8  # channels at full resolution, from which scores are computed
    config.model.octaves = 5
    config.model.smallest = 4.0  # usual diameter of the finest octave's keypoints, in pixels

    config.data = ConfigDict()
    config.data.photos = "photos"  # folder of photographs to learn from, in colour if possible
    config.data.places = ""  # folder of folders, each with photographs of one place, pixel by pixel
    config.data.validation = "validation"  # folder of photographs to validate on
    config.data.only_open = False  # refuse photographs that have no open licence in kjax's ledger

    config.draw = ConfigDict()  # how pairs are drawn: see kjax.keypoints.views
    config.draw.side = 512  # of a view in pixels
    config.draw.least_extent = 0.4  # side of a view over the photograph's shorter side
    config.draw.zoom_noise = 0.35  # σ of the logarithm of the ratio of both views' sides
    config.draw.shift_noise = 0.12  # σ of the distance of both views, over their side
    config.draw.upright_share = 0.2  # of pairs that are turned as their photographs are
    config.draw.tilt_degrees = 10.0  # σ of how these are tilted
    config.draw.perspective = 0.15  # maximum displacement of a view's corners, over its side
    config.draw.appearance = 0.7  # strength of changed light, tones, channels, …
    config.draw.appearance_probability = 0.5

    config.reward = ConfigDict()  # what makes a keypoint good: see kjax.keypoints.config
    config.reward.keypoints = 512
    config.reward.sigma = 1.0  # distance in pixels that costs 40 % of the reward
    config.reward.reach = 0.05  # added to it per pixel of the keypoint's diameter
    config.reward.octaves = 0.75  # difference of scales that costs all of it
    config.reward.descriptor = "fast"  # has to match, or there is no reward; "": none
    config.reward.location = 0.3  # weight of the distance between matching keypoints
    config.reward.size = 1.0  # of the difference of their sizes, in octaves
    config.reward.direction = 1.0  # of the difference of their directions

    config.optimizer = ConfigDict()  # AdamW
    config.optimizer.learning_rate = 1e-3  # after the warm-up; falls as a cosine to a hundredth
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0  # of the gradient

    config.train = ConfigDict()
    config.train.pairs = 8  # in a batch
    config.train.steps = 4_000
    config.train.dtype = "bfloat16"  # of the computation; parameters are float32
    config.train.steps_per_dispatch = 50  # between two looks of the host
    config.train.log_every = 100  # steps between lines of metrics
    config.train.eval_every = 2_000  # steps between validations; 0: only at the end
    config.train.eval_batches = 8  # of a validation
    config.train.checkpoint_every = 2_000  # steps between checkpoints
    config.train.keep_checkpoints = 2  # the last ones; the best is kept too
    return config.lock()
