"""Which optimizer tolerates late gradients best on a language model?

A decoder-only Transformer on the characters of the standard library's own manual, and
gradients 0 to 8 updates late. Step and momentum are tuned for each optimizer and delay.
Momentum is beta_1 of Adam, and both momenta of Muon (matrices, and the rest). SGD takes
steps along the moving average of the gradients.

    python -m experiments.main --config=configs/char_lm.py --workdir=runs/char_lm
"""

import jax.numpy as jnp
import optax
import pandas as pd
from ml_collections import ConfigDict
from optax.contrib import muon

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, optimizer, tasks
from experiments.configs import (
    at_least,
    below_one,
    check_delays,
    check_warmup,
    positive,
)
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import between, difference, ratio, tuned
from experiments.results.runs import Run
from experiments.results.tables import Found

LIMITS = at_least(1, "width", "depth")
LIMITS |= at_least(0, "delay", "warmup_updates")
LIMITS |= positive("sgd_learning_rate", "adam_learning_rate", "muon_learning_rate")
LIMITS |= below_one("momentum", "muon_momentum")


def get_config() -> ConfigDict:
    """A Transformer small enough for 648 of them to train on one core."""
    return ConfigDict(
        dict(
            delay=(0, 1, 8),  # updates
            sgd_learning_rate=(0.5, 1.0, 2.0),  # without delay; see FALL
            adam_learning_rate=(0.005, 0.01, 0.02),
            muon_learning_rate=(0.015, 0.03, 0.06),
            momentum=(0.0, 0.5, 0.9),
            muon_momentum=(0.5, 0.9, 0.97),
            warmup_updates=50,  # then a cosine to zero
            batch_size=4,  # windows an update
            context=32,  # characters
            width=32,
            depth=1,  # blocks
            updates=800,
            seeds=5,
            tuning_seeds=3,  # that choose step and momentum, and are not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, m: optax.chain(optax.ema(m, False), optax.sgd(rate)),
    "Adam": optax.adam,
    "Muon": lambda rate, m: muon(rate, beta=m, adam_b1=m, consistent_rms=0.2),
}
SIZES = ("batch_size", "context", "width", "depth")
FALL = {"SGD": 1.5, "Adam": 0.3, "Muon": 0.3}
"""At a delay of d the steps of the grid are those without, over 1 + FALL d."""


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each optimizer and delay, since each has its own steps."""
    check_warmup(config)
    max_delay = check_delays("delay", config.delay, config.updates)
    cosine = optax.cosine_decay_schedule(1.0, config.updates)

    def schedule(rate):
        first = config.warmup_updates
        return lambda now: rate * jnp.minimum(1, (now + 1) / first) * cosine(now)

    def arm(name, tau):
        def late(learning_rate, momentum, delay):
            tx = OPTIMIZERS[name](schedule(learning_rate), momentum)
            return dj.delayed(tx, delay, max_delay=max_delay)

        rates, fall = config[f"{name.lower()}_learning_rate"], 1 + FALL[name] * tau
        grid = {
            "delay": (tau,),
            "learning_rate": [float(f"{rate / fall:.3g}") for rate in rates],
            "momentum": config.muon_momentum if name == "Muon" else config.momentum,
        }
        return Arm(training=optimizer(late), labels={"optimizer": name}, grid=grid)

    return Experiment(
        question="Which optimizer tolerates late gradients best on a language model?",
        task=tasks.char_lm(**{key: config[key] for key in SIZES}),
        arms=[arm(name, tau) for name in OPTIMIZERS for tau in config.delay],
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=4,
        answer=answer,
        published=published(),
        records=records(),
        figures=[
            figures.over("delay", "test_loss", color="optimizer", fixed=False),
            figures.best_step("delay", color="optimizer"),
            figures.curves("train_loss", panels="optimizer"),
        ],
        tables=[figures.Table("staleness", "Delay and measured staleness", measured)],
    )


def measured(run: Run) -> pd.DataFrame:
    """The staleness of each best cell, beside the delay that was asked."""
    keys = ["optimizer", "delay", "learning_rate", "momentum"]
    cells = run.best.groupby(keys, as_index=False, sort=False)
    return cells[["staleness_mean", "staleness_max"]].mean()


def loss(name: str, delay: float, **where: float) -> Measure:
    """Held-out loss, nats a character."""
    return tuned("test_loss", optimizer=name, delay=delay, **where)


def cost(name: str, delay: float, **where: float) -> Measure:
    """What a delay adds to it."""
    return difference(loss(name, delay, **where), loss(name, 0, **where))


def published() -> list[Published]:
    """What the source says of a delay of one update."""
    stated = dict(source="Zmushko et al. (2026), arXiv:2606.30634")
    stated["setting"] = "SmolLM-360M, PipeDream-2BW; AdamW and Muon"
    stated["tried"] = "A far smaller model; step and momentum tuned at each delay."
    more, less = (cost("Adam", 1, momentum=m) for m in (0.9, 0.0))
    least = dict(measure=cost("Adam", 1), at_least=0.2)
    part = dict(measure=ratio(cost("Muon", 1), cost("Adam", 1)), at_most=0.06)
    gain = dict(measure=difference(more, less), at_most=0.0, bound_is_ours=True)
    return [
        Published(
            text="One update of delay costs Adam more than 0.2 nats",
            said="a gap of more than 0.2 to the loss without delay",
            **(stated | least),
        ),
        Published(
            text="It costs Muon at most 6 % of what it costs Adam",
            said="a gap of 0.012 with Muon and of more than 0.2 with AdamW",
            **(stated | part),
        ),
        Published(
            text="It costs Adam less with a momentum of 0.9 than with none",
            said="more momentum absorbs more of the delay",
            **(stated | gain),
        ),
    ]


def records() -> list[Record]:
    """Held-out losses without delay, and what the longest delay adds."""
    fresh = {"SGD": (2.258, 0.0045), "Adam": (2.155, 0.013), "Muon": (2.048, 0.0081)}
    late = {"SGD": (0.4851, 0.025), "Adam": (0.2719, 0.018), "Muon": (0.2562, 0.013)}
    return [
        *(Record(f"Loss of {n} without delay", loss(n, 0), *fresh[n]) for n in fresh),
        *(Record(f"A delay of 8 adds to {n}'s", cost(n, 8), *late[n]) for n in late),
    ]


def answer(found: Found) -> str:
    """What the longest delay costs each optimizer, and which one loses least."""
    longest = found.results["delay"].max()
    costs = {name: cost(name, longest) for name in OPTIMIZERS}
    first, second, *_ = sorted(costs, key=lambda own: costs[own](found))
    apart = estimate(difference(costs[second], costs[first]), found).interval()
    least = f"{first} loses least"
    if not apart[0] > 0:
        least = f"{first} and {second} lose the same, as far as seeds tell"
    parts = [f"{own} {between(costs[own], found, same=0.0)}" for own in costs]
    best = min(costs, key=lambda own: loss(own, longest)(found))
    return (
        f"A delay of {longest:g} updates adds to the held-out loss, in nats a character"
        f" and each at its own step and momentum: {', '.join(parts)}; {least}. The"
        f" lowest loss at that delay has {best}, {loss(best, longest)(found):.3f}."
    )
