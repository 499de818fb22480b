"""The paper's training: ⋆ψ^c with s = 2, on Liberty, tested on Notredame and Yosemite.

    kjax download liberty notredame yosemite --out data
    kjax train --config base --out out/base

39,063 steps of 512 pairs. On one H200, by `benchmarks/train.py`: 5.4 minutes in float32 (with TF32
products, XLA's default there), 1.8 with `--config.model.dtype=bfloat16`. The paper reports a false
positive rate at 95 % recall of 0.42 % on Notredame and 2.18 % on Yosemite (means of three runs).
`--config.seeds=(0,1,2)` trains three seeds side by side.

Other configs start from this one. It lists every field; any can be set on the command line:
`--config.model.head=polar --config.model.s=1`.
"""

import math

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """Return every field with the paper's value; comments say where the paper is silent."""
    config = ConfigDict()

    config.seed = 0  # random seed of initial weights, pairs, augmentation and dropout
    config.seeds = ()  # several seeds to train side by side instead, e.g. (0, 1, 2)
    config.init = ""  # initial weights: a shipped name, a run or a file; "": random
    config.progress = True  # show a progress bar with pairs per second and remaining time
    config.tensorboard = True  # write metrics for TensorBoard, too (needs tensorboardX)

    config.model = ConfigDict()
    config.model.head = "combined_star"  # hardnet, xy, polar, combined, combined_star, sum or cat
    config.model.s = 2  # frequencies of the position encoding
    config.model.patch_size = 32  # N, a multiple of 4; stored patches are 64×64
    config.model.dropout = 0.3  # before the head; the paper is silent, this is HardNet's code
    config.model.head_bias = True  # encoded heads learn a bias m′
    config.model.dtype = "float32"  # type of the computation: float32 or bfloat16
    # Position kernels. The paper gives no values; these are from its authors' MKD code.
    config.model.kappa_xy = 1.0  # concentration of the kernels on x and y
    config.model.kappa_rho = 8.0  # on ρ
    config.model.kappa_theta = 8.0  # on θ
    config.model.scale_xy = math.pi / 2  # angle of the patch border
    config.model.scale_rho = math.pi  # angle of the patch corner
    config.model.scale_theta = 1.0  # factor on θ; other values break its periodicity
    config.model.corner_radius = 1.0  # ρ at the corner in the centre weight; published: 1 and √2
    config.model.channels = (32, 32, 64, 64, 128, 128)  # channels of the convolutions
    config.model.dimension = 128  # descriptor size
    config.model.context = (1,)  # widths of concentric patches, in patch sides, e.g. (1, 4)

    config.data = ConfigDict()
    # Folders in the PhotoTourism format, "embedded", or TFDS datasets: "tfds:phototour/liberty".
    config.data.train = ("data/liberty",)
    # Folder of photographs to draw pairs from, instead of train=(): see configs/photos.py.
    config.data.photos = ""
    # Folder of more, whose subfolders hold registered photographs of one place at several times.
    config.data.places = ""
    config.data.extent = 8.0  # side of their patches over the keypoint's diameter
    # Share of every batch for each training set, e.g. (0.5, 0.5); (): in proportion to points.
    config.data.shares = ()
    config.data.test = ("data/notredame", "data/yosemite")  # () for no evaluation
    # "resident": keep the dataset in device memory; "tfdata": stream batches. "auto": resident if
    # the dataset takes at most half of the free device memory, otherwise tfdata.
    config.data.pipeline = "auto"
    # Require that all photographs are in kjax's ledger under an open licence, and that teacher and
    # initial weights were trained on such photographs only: see docs/licences.md.
    config.data.only_open = False

    config.augment = ConfigDict()
    config.augment.flip_probability = 0.5  # probability of mirroring a pair
    config.augment.transpose_probability = 0.5  # probability of transposing a pair
    config.augment.max_rotation_degrees = 5.0  # maximum rotation of each patch, either way
    config.augment.area = (0.9, 1.0)  # range of the crop's share of the patch's area
    config.augment.aspect_ratio = (0.9, 1.1)  # range of the crop's width over its height
    config.augment.max_translation = math.inf  # maximum shift of the crop, in its half sides
    # Misalignment of the second patch, in multiples of HPatches' noise; if not 0, both patches
    # share the rotation and the crop of the first.
    config.augment.misalignment = 0.0
    # Photometric effects, independent for each patch. The paper has none.
    config.augment.max_blur = 0.0  # maximum σ of a Gaussian blur, in pixels of the N×N patch
    config.augment.max_gamma = 1.0  # exponent of a tone curve, from 1/this to this
    config.augment.saturation = 0.0  # maximum share of the grey range clipped at either end
    config.augment.max_noise = 0.0  # maximum σ of white noise, in patch standard deviations
    config.augment.compression = 0.0  # maximum JPEG quantisation step, in the same unit
    config.augment.photometric_probability = 1.0  # probability of each effect, for each patch
    # Changed appearance: other channels and tones, light, shadow, occlusion. The paper has none.
    config.augment.appearance = 0.0  # strength; 1 is usual
    config.augment.appearance_probability = 0.5  # probability that a patch changes
    config.augment.appearance_without = ()  # kinds to omit: see KINDS in kjax/data/appearance.py
    # Views of a point, with data.photos. Noise has a σ.
    config.augment.rotation_noise = 5.0  # in degrees
    config.augment.scale_noise = 0.08  # of the logarithm of the scale
    config.augment.shift_noise = 0.02  # in sides of the patch
    config.augment.max_stretch = 1.3  # maximum ratio of both axes
    config.augment.upright_share = 0.5  # share of points that are not turned to their orientation

    config.loss = ConfigDict()
    config.loss.name = "triplet"  # triplet, softmax, contrastive, infonce, sosnet, hynet
    config.loss.margin = placeholder(float)  # None: as published, 1.2 for hynet and 1 for others
    config.loss.anchor_swap = False  # True: mine from the positive, too, as HardNet's release does
    config.loss.temperature = 0.1  # temperature of infonce
    config.loss.neighbours = 8  # nearest neighbours in sosnet's second-order term
    config.loss.neighbour_rule = "paper"  # how sosnet chooses them: paper or release
    config.loss.alpha = 2.0  # weight of the inner product in hynet
    config.loss.norm_weight = 0.1  # weight of hynet's norm term
    config.loss.nested = ()  # numbers of leading entries to train as descriptors, e.g. (32, 64)
    config.loss.nested_weight = 1.0  # weight of each of their losses; whole descriptors have 1

    # Distillation from a larger model, which describes the same augmented patches.
    config.distill = ConfigDict()
    config.distill.teacher = ""  # a shipped name, a run or a weights file; "" for none
    config.distill.weight = 1.0  # weight of the distillation loss
    config.distill.match = "descriptors"  # what to match: descriptors, or distances in the batch

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"  # sgd (as in torch) or adam
    config.optimizer.learning_rate = 10.0  # falls linearly to zero; goes with the dampening below
    config.optimizer.momentum = 0.9
    config.optimizer.dampening = 0.9  # without it, use a tenth of the learning rate
    config.optimizer.weight_decay = 1e-4  # added to the gradient
    config.optimizer.warmup_steps = 0  # steps in which the rate rises; at most half of all

    config.train = ConfigDict()
    config.train.pairs = 512  # batch size over all devices: 1024 patches
    config.train.group = 1  # number of pairs of a batch that come from the same photograph
    config.train.parallel = "pmap"  # map over devices by jax.pmap or, as exactly, a "mesh"
    config.train.pairs_per_epoch = 2_000_000
    config.train.epochs = 10
    config.train.steps = 0  # number of steps of the run and of the decay; 0: from the epochs
    config.train.joint_batch_norm = True  # normalise both views together; the paper is silent
    config.train.steps_per_dispatch = 100  # maximum steps before the host checks for signals
    config.train.log_every = 100  # steps between lines of metrics
    config.train.eval_every = 4_000  # steps between evaluations; 0: only at the end
    config.train.checkpoint_every = 2_000  # steps between checkpoints
    config.train.keep_checkpoints = 2  # number of recent checkpoints; the best is kept, too
    return config.lock()
