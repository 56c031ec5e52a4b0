"""What do late stages cost SGD, Adam and Muon, and what wins it back?

A Transformer of 8 blocks on the characters of the standard library's own manual, in
stages that never wait: stage s of S has gradients S - 1 - s updates old. Without a
stash ("plain") a backward pass reads other weights than its forward pass. The cures:

- stash: the backward pass reads the weights of its forward pass (PipeDream);
- prediction: as with a stash, and the forward pass reads x + delay times the last move;
- PipeMare: no stash, but its T1 and T2, here with the delays of all others;
- look-ahead: NAdam with a stash. The share of momentum in its step rises as in 50,000
  updates of the source: `momentum_decay` is 200 over the updates of this run;
- rotation: Adam in the eigenvectors of each matrix of the blocks, with a stash.

The last two are optimizers, also of one stage. Step and momentum are tuned for each
optimizer, method and number of stages. Runs are short: a character given the one before
it has an entropy of 2.46 nats, and only Muon comes near. On an H200 it takes 6 minutes;
losses are those of a CPU (to 1e-6 nats at small steps).

    python -m experiments.main --config=configs/pipeline_char_lm.py \
        --workdir=runs/pipeline_char_lm

`:large` trains one method in 32 stages, simulated on one GPU, on token shards of your
own (little-endian uint16; docs/experiments.md): 26 million parameters with a width of
160, 122 million with `--config.width=448 --config.heads=7`. `--dry_run` prints its
memory, its FLOPs and its time before it runs. We ran 60 updates of 26 million
parameters on an H200 with random tokens: compiled in 68 s, then 26 updates a second
(20,000 take 13 minutes), 6.3 GiB in use, as the dry run says.

    python -m experiments.main --config=configs/pipeline_char_lm.py:large \
        '--config.shards=/data/*.bin' --workdir=runs/large --dry_run
"""

import functools
from collections.abc import Callable
from typing import Any

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Experiment,
    Published,
    Record,
    configs,
    figures,
    pipelined,
    tasks,
)
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, ratio, tuned
from experiments.results.tables import Found
from experiments.tasks import stacked

SMALL = {"updates": 60, "stages": (4, 8), "momentum": (0.0, 0.5)}
"""What the small size of the book changes, beside the numbers of seeds."""


LIMITS = configs.at_least(1, "width", "depth", "stages")
LIMITS |= configs.at_least(0, "warmup_updates")
LIMITS |= configs.positive("adam_rate", "muon_rate", "sgd_rate")
LIMITS |= configs.below_one("look_ahead_momentum", "momentum")


def get_config(size: str = "small") -> ConfigDict:
    """All methods on characters, or one of them on tokens."""
    if configs.is_large(size):
        return ConfigDict(
            dict(
                shards="/data/*.bin",  # a path or a pattern
                vocab=50304,  # GPT-2's 50,257, rounded up to a multiple of 128
                optimizer="adam",  # or sgd, muon
                method="stash",  # or plain, PipeMare, prediction, look-ahead, rotation
                stages=32,  # each with one block
                batch_size=8,  # windows an update
                context=512,  # tokens
                width=160,
                heads=5,
                dtype="bfloat16",  # of activations and products
                learning_rate=1e-3,
                momentum=0.9,
                warmup_updates=1000,  # then a cosine to zero
                updates=20_000,
                evaluate_every=500,  # updates
            )
        )
    return ConfigDict(
        dict(
            stages=(2, 4, 8),  # of `depth` blocks
            adam_rate=(0.003, 0.01, 0.03, 0.1),
            muon_rate=(0.015, 0.05, 0.15),
            sgd_rate=(0.05, 0.15, 0.5, 1.5),
            momentum=(0.0, 0.5, 0.9),
            look_ahead_momentum=(0.0, 0.5, 0.9, 0.99),
            warmup_updates=25,  # then a cosine to zero
            batch_size=4,  # windows an update
            context=16,  # characters
            width=16,
            depth=8,  # blocks
            updates=250,
            seeds=32,
            tuning_seeds=8,  # that choose step and momentum
        )
    )


def _optimizers(updates):
    """{name: (step size, momentum) -> optimizer}."""
    return {
        "adam": optax.adam,
        "muon": lambda rate, beta: optax.contrib.muon(
            rate,
            beta=beta,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=stacked.matrices,
        ),
        "sgd": optax.sgd,
        "look-ahead": lambda rate, beta: dj.pipelines.nadam(
            rate, b1=beta, momentum_decay=200 / updates
        ),
        "rotation": lambda rate, beta: dj.pipelines.rotated_adam(
            rate,
            b1=beta,
            is_rotated=lambda path, leaf: path.startswith("blocks") and leaf.ndim == 2,
        ),
    }


def _stashed(parts, make, stages, method, annealing):
    """`method` is the share of its delay that a stage looks ahead: 0 is the stash."""
    del annealing
    return dj.pipelines.mixed(
        parts,
        lambda delay: dj.predict_weights(make(), delay, share=method),
        dj.pipelines.pipedream(stages),
        forward_point=dj.gradient_params,
    )


def _unstashed(parts, make, stages, method, annealing):
    """`method` is 1 for PipeMare, and 0 for T1 and T2 of no delay, which do nothing."""

    def tx(delay):
        slower = dj.pipelines.reschedule_by_delay(
            delay * method, annealing_steps=annealing
        )
        own = optax.chain(make(), slower)
        return dj.pipelines.discrepancy_correction(own, delay * method, decay=0.5)

    return dj.pipelines.mixed(
        parts,
        tx,
        dj.pipelines.pipedream(stages, stash=False),
        backward_point=dj.pipelines.backward_params,
    )


STASHED = {"stash": 0.0, "prediction": 1.0}
UNSTASHED = {"plain": 0.0, "PipeMare": 1.0}
OF_ADAM = ("look-ahead", "rotation")  # optimizers of their own


def making(config: ConfigDict, optimizer: str, pipeline: Callable[..., Any]) -> Any:
    """What makes a pipeline, of one stage if no axis says another number."""
    ends = config.warmup_updates, config.updates
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, *ends)
    tx = _optimizers(config.updates)[optimizer]

    def make(parts, learning_rate, momentum, stages=1, method=0.0):
        def own():
            return tx(lambda step: learning_rate * shape(step), momentum)

        return pipeline(parts, own, stages, method, annealing=config.updates / 4)

    return make


def experiment(config: ConfigDict) -> Experiment:
    """All methods on characters; or one of them on tokens, where there are shards."""
    configs.check_warmup(config)
    return _large(config) if "shards" in config else _small(config)


def _large(config: ConfigDict) -> Experiment:
    sizes = ("vocab", "batch_size", "context", "width", "heads", "dtype")
    kind = _unstashed if config.method in UNSTASHED else _stashed
    methods = STASHED | UNSTASHED | dict.fromkeys(OF_ADAM, 0.0)
    method = configs.named("method", config.method, methods)
    optimizer = config.method if config.method in OF_ADAM else config.optimizer
    configs.named("optimizer", optimizer, _optimizers(config.updates))
    train = functools.partial(
        making(config, optimizer, kind),
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        stages=config.stages,
        method=method,
    )
    return Experiment(
        question="What do 32 late stages cost a language model?",
        task=tasks.tokens(
            config.shards,
            depth=config.stages,
            in_parts=True,
            **{size: config[size] for size in sizes},
        ),
        training=pipelined(train),
        seeds=1,
        updates=config.updates,
        evaluate_every=config.evaluate_every,
        figures=[figures.curves("train_loss"), figures.curves("test_loss")],
    )


def _small(config: ConfigDict) -> Experiment:
    late = {"stages": config.stages}
    if max(config.stages) > config.depth:
        raise ValueError(
            f"config.stages must hold numbers up to config.depth = {config.depth}, the"
            f" blocks that they share, got {max(config.stages)}."
        )

    def arm(optimizer, pipeline, labels, momentum=config.momentum, **grid):
        rate = config[f"{labels['optimizer']}_rate"]
        grid |= {"learning_rate": rate, "momentum": momentum}
        return Arm(
            training=pipelined(making(config, optimizer, pipeline)),
            labels=labels,
            grid=grid,
        )

    def of(name):
        label = {"optimizer": name}
        yield arm(name, _stashed, label | {"method": "one stage"})
        yield arm(name, _stashed, label, method=STASHED, **late)
        if name != "sgd":
            yield arm(name, _unstashed, label, method=UNSTASHED, **late)

    def of_adam(method, momentum):
        label = {"optimizer": "adam", "method": method}
        also_one = (1, *config.stages)
        return arm(method, _stashed, label, momentum, stages=also_one)

    ahead, rotation = OF_ADAM
    shown = dict(panels="optimizer", color="method")
    return Experiment(
        question="What do late stages cost SGD, Adam and Muon, and what wins it back?",
        task=tasks.char_lm(
            batch_size=config.batch_size,
            context=config.context,
            width=config.width,
            depth=config.depth,
            evaluated_tokens=2048,
            in_parts=True,
        ),
        arms=[
            *of("adam"),
            of_adam(ahead, config.look_ahead_momentum),
            of_adam(rotation, config.momentum),
            *of("muon"),
            *of("sgd"),
        ],
        static=("stages",),
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=2,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("stages", "test_loss", fixed=False, **shown),
            figures.best_step("stages", **shown),
            figures.best_step("stages", "momentum", **shown),
        ],
    )


def loss(optimizer: str, method: str, stages: int | None = None) -> Measure:
    """Held-out loss in nats a character, at the best step and momentum."""
    late = {} if stages is None else {"stages": stages}
    return tuned("test_loss", optimizer=optimizer, method=method, **late)


def cost(optimizer: str, method: str, stages: int = 8) -> Measure:
    """The loss less the loss of the same optimizer in one stage."""
    own = loss(optimizer, method, 1)
    one = own if method in OF_ADAM else loss(optimizer, "one stage")
    return difference(loss(optimizer, method, stages), one)


def left(optimizer: str, method: str, stages: int = 8) -> Measure:
    """What a method's stages cost, over what they cost with a stash alone."""
    return ratio(cost(optimizer, method, stages), cost(optimizer, "stash", stages))


_MARIN = "Marin project, issue 6431 of its repository (a program, no paper)"
_ASYNC_PP = "Ajanthan et al. (2025), arXiv:2505.01099"


def published(config: ConfigDict) -> list[Published]:
    """The sources train other models, and longer: compare signs and ratios alone."""
    del config
    beside_none = difference(loss("adam", "look-ahead", 8), loss("adam", "one stage"))
    beside_stash = difference(loss("adam", "look-ahead", 8), loss("adam", "stash", 8))
    return [
        Published(
            text="Rotation wins back most of what 8 stages cost Adam",
            source="Jung et al. (2026), arXiv:2602.03515, recalled",
            said="32 stages take Adam 5.81 times the updates of one, rotation 1.27",
            setting="95M parameters, OpenWebText, in updates to a loss",
            measure=left("adam", "rotation"),
            at_most=0.5,
            bound_is_ours=True,
        ),
        Published(
            text="Look-ahead in 8 stages is better than Adam with a stash",
            source=_ASYNC_PP,
            said="better than all other asynchronous methods",
            setting="GPT of 8 blocks of width 768 in 8 stages, WikiText-103",
            measure=beside_stash,
            at_most=0.0,
            bound_is_ours=True,
            tried="Only the stash is compared: by the mean loss rotation ends lower.",
        ),
        Published(
            text="Look-ahead in 8 stages is better than Adam without late stages",
            source=_ASYNC_PP,
            said="better than GPipe, up to a billion parameters",
            setting="GPT of 8 blocks of width 768 in 8 stages, WikiText-103",
            measure=beside_none,
            at_most=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="Prediction wins back a fifth of what late stages cost Muon",
            source=_MARIN,
            said="a loss gap of 0.086 in six stages, and of 0.067 with prediction",
            setting="a mixture of experts, width 512, 6000 steps, step not tuned",
            measure=left("muon", "prediction"),
            at_most=0.8,
        ),
        Published(
            text="Prediction wins back a smaller share in 8 stages than in 4",
            source=_MARIN,
            said="53 % at a delay of 2, 45 % at 8, 19 % at 16",
            setting="as above, but a uniform delay",
            measure=difference(
                left("muon", "prediction"), left("muon", "prediction", 4)
            ),
            at_least=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="Late stages cost Muon less than half of what they cost Adam",
            source=_MARIN,
            said="a loss gap of 0.086 for Muon in six stages, of 0.273 for AdamH",
            setting="as above, delays 5 .. 0 by stage",
            measure=ratio(cost("muon", "stash"), cost("adam", "stash")),
            at_most=0.5,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses without late stages, and in 8 of them."""
    del config
    known = {
        ("adam", "one stage", None): (2.745, 0.022),
        ("adam", "stash", 8): (2.972, 0.031),
        ("adam", "look-ahead", 8): (2.929, 0.022),
        ("adam", "rotation", 8): (2.855, 0.020),
        ("muon", "one stage", None): (2.491, 0.006),
        ("muon", "stash", 8): (2.706, 0.015),
        ("muon", "prediction", 8): (2.763, 0.015),
        ("sgd", "stash", 8): (2.964, 0.019),
    }
    return [
        Record(f"Loss of {name}, {method}", loss(name, method, stages), *numbers)
        for (name, method, stages), numbers in known.items()
    ]


def answer(found: Found) -> str:
    """What 8 stages cost each optimizer with each method."""

    def costs(name, *methods):
        parts = [
            f"{method} {between(cost(name, method), found, same=0.0, form='.3f')}"
            for method in methods
        ]
        return f"{name}: " + ", ".join(parts)

    parts = [
        costs("adam", *UNSTASHED, *STASHED, *OF_ADAM),
        costs("muon", *UNSTASHED, *STASHED),
        costs("sgd", *STASHED),
    ]
    return (
        "What 8 late stages cost, in nats a character beside the same optimizer in one"
        f" stage. {'; '.join(parts)}."
    )
