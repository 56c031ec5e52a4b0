"""How late may a gradient be before Adam notices?

An MLP on scikit-learn's digits, Adam, gradients 0 to 32 updates late: the step size
that is best without delay kept at every delay, and the step size tuned anew at each.

    python -m experiments.main --config=configs/default.py --workdir=runs/default

About 10 seconds on two cores. Seen (2026-11-21, commit cd6429a070e3, jax 0.10.2):
With its step re-tuned Adam loses nothing up to a delay of 4, and 12 points of test
accuracy at 32; with the step that is best undelayed it fails from 4 or 8 on (two steps
are nearly as good undelayed).
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    """Every key there is. A tuple is a grid axis: all its values are one program."""
    config = ConfigDict()

    config.task = ConfigDict(
        dict(
            # digits_mlp, digits_cnn, breast_cancer, char_lm, quadratic,
            # tokens:/path/*.bin, tfds:cifar10, or your own package.module:make
            name="digits_mlp",
            batch_size=32,  # examples a step; 0 is the full batch
            split_seed=0,  # which examples are held out
            test_fraction=0.25,  # of the examples, held out
            data_dir="",  # prepared TFDS data sets; "" is TFDS's own default
            width=32,  # MLP: hidden units; CNN: channels; Transformer: model width
            depth=1,  # hidden layers; Transformer: blocks
            heads=4,  # Transformer: attention heads
            context=64,  # Transformer: tokens it sees
            vocab=256,  # tokens: size of the vocabulary
            image_size=224,  # tfds: what images of varying size are cut to, pixels
            dtype="float32",  # Transformer, ResNets: compute in it, or in bfloat16
            l2=1e-3,  # breast_cancer: penalty (l2 / 2) |w|^2
            eigenvalues=(0.1, 1.0),  # quadratic: curvatures
            noise=0.0,  # quadratic: standard deviation of the gradient noise
        )
    )

    config.opt = ConfigDict(
        dict(
            name=("adam",),  # of the sections below; each is a program of its own
            warmup_steps=0,  # linear warm-up of the learning rate, in updates
            decay="constant",  # then "constant" or "cosine" to zero
            sgd=dict(
                learning_rate=(0.01, 0.03, 0.1, 0.3, 1.0), momentum=0.0, nesterov=False
            ),
            adam=dict(
                learning_rate=(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064),
                b1=0.9,
                b2=0.999,
                eps=1e-8,
            ),
            adamw=dict(
                learning_rate=(0.0003, 0.001, 0.003, 0.01, 0.03),
                b1=0.9,
                b2=0.999,
                eps=1e-8,
                weight_decay=1e-4,
            ),
            lion=dict(
                learning_rate=(0.00003, 0.0001, 0.0003, 0.001, 0.003),
                b1=0.9,
                b2=0.99,
                weight_decay=0.0,
            ),
            muon=dict(
                learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1), beta=0.95, nesterov=True
            ),
            lars=dict(
                learning_rate=(1.0, 3.0, 10.0, 30.0),
                momentum=0.9,
                weight_decay=0.0,
                trust_coefficient=0.001,
            ),
        )
    )

    config.delay = ConfigDict(
        dict(
            law=("constant",),  # constant, uniform (0 to 2 x), geometric, poisson
            value=(0, 1, 2, 4, 8, 16, 32),  # updates; the mean where the law is random
            max_delay=config_dict.placeholder(int),  # None: the largest that can occur
            warmup="fresh",  # fresh, skip, zeros
            history_dtype="",  # "" is the gradients' own; bfloat16 halves the memory
            drop_above=config_dict.placeholder(int),  # refuse older gradients
        )
    )
    config.modulation = ConfigDict(
        dict(
            # none, inverse, polynomial, hinge, exponential; for arms capped, by_mean
            law=("none",),
            placement=("after",),  # of the optimizer: after or before
            power=0.5,  # polynomial
            slope=10.0,  # hinge, per update
            knee=4.0,  # hinge, updates
            rate=0.2,  # exponential, per update
        )
    )
    config.compensation = ConfigDict(
        dict(
            name=("none",),  # none, dc, dc_adaptive, gap_aware
            strength=(0.04,),  # dc and dc_adaptive: lambda_0
            decay=0.95,  # dc_adaptive; gap_aware has its own 0.999
        )
    )

    config.cluster = ConfigDict(
        dict(
            # protocols, and methods whose workers average models of their own, to
            # compare, each on a simulated cluster of its own, with what it changes of
            # the keys below, of task.batch_size or of opt.warmup_steps:
            # "n_softsync(15) workers=30 batch_size=4"; () trains under config.delay
            arms=(),
            workers=8,
            # seconds a gradient: constant, exponential, shifted_exponential, gamma,
            # lognormal, pareto, infinite_bernoulli, empirical, markov_stragglers,
            # sleepers
            service="exponential(1.0)",
            speeds="equal",  # linear, sqrt: worker i takes i + 1, sqrt(i + 1) times it
            slow_workers=0,  # how many, the last ones, take slow_factor times as long
            slow_factor=1.0,
            latency_seconds=0.0,  # of a message
            message_bytes=0.0,
            bytes_per_second=0.0,  # of a link; 0 is infinitely fast
            serial=False,  # whether the server handles one message at a time
            # where an arm ends: in time, or in data; if both are 0, after config.steps
            seconds=0.0,  # simulated
            examples=0,  # in the gradients it has applied
            evaluations=20,  # points of a curve, equal numbers of updates apart
            read_spread=0.0,  # of a gradient's staleness, over which its read spreads
        )
    )
    config.trace = ""  # a logged trace, .csv or .npz, in place of the arms
    config.target = ConfigDict(
        dict(
            metric="train_loss",  # or another that is evaluated, or gradient_norm
            value=0.0,  # seconds_to_target is the time until it is reached; 0: none
        )
    )

    config.over = ConfigDict(
        dict(  # of the figure over_option
            option="workers",  # in which arms differ: what stands along the axis
            label="",  # how it is called there; "" is its name
            panels="",  # another one, each of whose values has a panel
        )
    )

    config.execution = "simulate"  # the workers on one device, or "run": on several
    config.mesh = ConfigDict(
        dict(
            workers=1,  # that share a batch, each with gradients of its own delay
        )
    )
    # what the workers' gradients become: their mean, or "overlapped_mean", that of the
    # step before, one more update late
    config.exchange = "mean"

    config.seeds = (0, 1, 2)  # replicates; each is folded into the four seeds below
    config.params_seed = 0  # initial parameters
    config.data_seed = 0  # order of the examples
    config.delay_seed = 0  # random delays
    config.cluster_seed = 0  # service times

    config.steps = 1000  # updates
    config.chunk = 50  # updates in one compiled scan, between two looks by the host
    config.checkpoint_every = 500  # updates
    config.checkpoints_kept = 2
    config.profile = (0, 0)  # trace the updates in [start, stop)
    config.advise = False  # for SGD: say, and draw, which steps are unstable
    config.dry_run = False  # compile, print costs, stop

    config.metric = "test_accuracy"  # what the figures over delay show
    config.select_by = "train_loss"  # what the best step size is chosen by
    config.figures = ("over_delay", "best_step", "loss_curves")
    # what was measured, printed beside what you will measure; see experiments.expected
    config.expected = ConfigDict(
        {
            "test_accuracy/adam/delay=0": 0.97,
            "test_accuracy/adam/delay=4": 0.97,
            "test_accuracy/adam/delay=32": 0.85,
        }
    )
    return config
