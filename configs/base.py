"""The paper's training: ⋆ψ^c with s = 2, on Liberty, tested on Notredame and Yosemite.

    kjax download liberty notredame yosemite --to data
    python run_train.py --config=configs/base.py --workdir=out/base

39,063 steps of 512 pairs. On one H200, by `benchmarks/train.py`: 5.4 minutes in float32 (with TF32
products, XLA's default there), 1.8 with `--config.model.dtype=bfloat16`. The paper reports a false
positive rate at 95 % recall of 0.42 % on Notredame and 2.18 % on Yosemite (means of three runs).
`--config.seeds=(0,1,2)` trains three seeds side by side.

Other configs start from this one; every field is here, and any can be set from the command line:
`--config.model.head=polar --config.model.s=1`.
"""

import math

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """Every field, with the paper's value; where the paper is silent, the comment says so."""
    config = ConfigDict()

    config.seed = 0  # of initial weights, pairs, augmentation and dropout
    config.seeds = ()  # train several side by side instead, e.g. (0, 1, 2)
    config.init = ""  # weights to start from: a name that ships, a run or a file; "": from chance
    config.progress = True  # show a bar with pairs a second and the time left
    config.tensorboard = True  # write metrics for TensorBoard too, where tensorboardX is installed

    config.model = ConfigDict()
    config.model.head = "combined_star"  # hardnet, xy, polar, combined, combined_star, sum or cat
    config.model.s = 2  # frequencies of the position encoding
    config.model.patch_size = 32  # N, a multiple of 4; stored patches are 64×64
    config.model.dropout = 0.3  # before the head; the paper is silent, this is HardNet's code
    config.model.head_bias = True  # whether encoded heads learn m′
    config.model.dtype = "float32"  # of the computation: float32 or bfloat16
    # Of the position kernels. The paper gives no values; these are its authors' MKD code's.
    config.model.kappa_xy = 1.0  # concentration of the kernels on x and y
    config.model.kappa_rho = 8.0  # on ρ
    config.model.kappa_theta = 8.0  # on θ
    config.model.scale_xy = math.pi / 2  # angle of the patch border
    config.model.scale_rho = math.pi  # angle of the patch corner
    config.model.scale_theta = 1.0  # factor on θ; another breaks its periodicity
    config.model.corner_radius = 1.0  # ρ at the corner in the centre weight; published: 1 and √2
    config.model.channels = (32, 32, 64, 64, 128, 128)  # of the convolutions; fewer are quicker
    config.model.dimension = 128  # numbers in a descriptor

    config.data = ConfigDict()
    # Folders in the PhotoTourism format, "embedded", or sets of TFDS: "tfds:phototour/liberty".
    config.data.train = ("data/liberty",)
    # Of every batch, for each training set, e.g. (0.5, 0.5); (): as many as they have points.
    config.data.shares = ()
    config.data.test = ("data/notredame", "data/yosemite")  # the same; () for no evaluation
    # "resident": the set in device memory; "tfdata": batches are brought there. "auto": resident if
    # the set takes at most half of what is free there, else tfdata; the run says which and why.
    config.data.pipeline = "auto"
    # Refuse to begin unless every photograph is in kjax's ledger under an open licence, and a
    # teacher and a start learned from such photographs alone: see docs/licences.md.
    config.data.only_open = False

    config.augment = ConfigDict()
    config.augment.flip_probability = 0.5  # of mirroring a pair
    config.augment.transpose_probability = 0.5  # of swapping rows and columns of a pair
    config.augment.max_rotation_degrees = 5.0  # each patch turns by up to this, either way
    config.augment.area = (0.9, 1.0)  # range of the crop's share of the patch
    config.augment.aspect_ratio = (0.9, 1.1)  # range of the crop's width over its height
    config.augment.max_translation = math.inf  # of the crop's centre, in half sides of the crop
    # How far the second patch is cut askew of the first, in multiples of HPatches' noise; if not 0,
    # the first one's turn and crop are those of both.
    config.augment.misalignment = 0.0
    # Of grey values, each patch apart. The paper has none of it.
    config.augment.max_blur = 0.0  # σ of a Gaussian blur up to this, in pixels of the N×N patch
    config.augment.max_gamma = 1.0  # exponent of a tone curve, from 1/this to this
    config.augment.saturation = 0.0  # of the grey values' range, cut off at either end, up to this
    config.augment.max_noise = 0.0  # σ of white noise up to this, in patch standard deviations
    config.augment.compression = 0.0  # step of JPEG's rounding up to this, in the same
    config.augment.photometric_probability = 1.0  # of each of these five effects, for each patch

    config.loss = ConfigDict()
    config.loss.name = "triplet"  # triplet, softmax, contrastive, infonce, sosnet, hynet
    config.loss.margin = placeholder(float)  # None: as published, 1 for triplets and 1.2 for hynet
    config.loss.anchor_swap = False  # the paper's mining; True: HardNet's, from the positive too
    config.loss.temperature = 0.1  # of infonce
    config.loss.neighbours = 8  # of sosnet's second-order term
    config.loss.neighbour_rule = "paper"  # how sosnet chooses them
    config.loss.alpha = 2.0  # weight of the inner product in hynet
    config.loss.norm_weight = 0.1  # of hynet's norm term
    config.loss.nested = ()  # first entries that shall be descriptors themselves, e.g. (32, 64)
    config.loss.nested_weight = 1.0  # of each of their losses, beside the whole descriptors' 1

    # Learn from a larger model, too, which describes the same augmented patches.
    config.distill = ConfigDict()
    config.distill.teacher = ""  # a name that ships, a run or a weights file; "" for none
    config.distill.weight = 1.0  # of what is matched, beside the loss
    config.distill.match = "descriptors"  # the teacher's; or "distances" within the batch

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"  # torch's; or adam
    config.optimizer.learning_rate = 10.0  # falls linearly to zero; goes with the dampening below
    config.optimizer.momentum = 0.9
    config.optimizer.dampening = 0.9  # without it the learning rate would be ten times too high
    config.optimizer.weight_decay = 1e-4  # added to the gradient

    config.train = ConfigDict()
    config.train.pairs = 512  # in a batch, over all devices: 1024 patches
    config.train.group = 1  # pairs of a batch that come from one photograph, as hard negatives do
    config.train.pairs_per_epoch = 2_000_000
    config.train.epochs = 10
    config.train.steps = 0  # length of the run and of the decay; 0: from the epochs
    config.train.joint_batch_norm = True  # both views as one batch of 1024; the paper is silent
    config.train.steps_per_dispatch = 100  # between two looks of the host
    config.train.log_every = 100  # steps between lines of metrics
    config.train.eval_every = 4_000  # steps between tests; 0: only at the end
    config.train.checkpoint_every = 2_000  # steps between checkpoints
    config.train.keep_checkpoints = 2  # the last ones; the best is kept too
    return config.lock()
