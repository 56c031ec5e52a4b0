"""The published rules for stale gradients, as a comparison tries them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import delayjax as dj


class Optimizer(NamedTuple):
    """An optimizer that rules are combined with.

    Attributes:
        direction: momentum -> a transformation of gradients into directions; the
            update is the direction times minus the learning rate.
        momentum: by default.
        learning_rate: the smallest and the largest that are tried.
    """

    direction: Callable[[Any], optax.GradientTransformation]
    momentum: float
    learning_rate: tuple[float, float]


def _muon(momentum: Any) -> optax.GradientTransformation:
    own = optax.contrib.muon(1.0, beta=momentum, consistent_rms=0.2)
    return optax.chain(own, optax.scale(-1.0))


_KNOWN = {
    "sgd": (optax.trace, 0.9),
    "adam": (optax.scale_by_adam, 0.9),
    "muon": (_muon, 0.95),
}


def optimizers(**learning_rates: Sequence[float]) -> dict[str, Optimizer]:
    """SGD with momentum 0.9, Adam and Muon, those that have learning rates.

    Args:
        **learning_rates: name -> the smallest and the largest that are tried.

    Raises:
        ValueError: if there is no such optimizer.
    """
    found = {}
    for name, (low, high) in learning_rates.items():
        if name not in _KNOWN:
            raise ValueError(
                f"`optimizers` must be among {', '.join(_KNOWN)}, got {name!r}."
            )
        if not 0 < low < high:
            raise ValueError(
                f"the learning rates of {name} must be positive and ascend, got"
                f" {low} and {high}."
            )
        found[name] = Optimizer(*_KNOWN[name], (low, high))
    return found


class Trial(NamedTuple):
    """What a rule is made of, in one cell of the grid."""

    optimizer: Optimizer
    rate: Any  # the learning rate, may be traced
    shape: optax.Schedule  # step -> factor of the learning rate
    strength: Any  # the rule's own number, may be traced
    cluster: Any  # its number, may be traced
    workers: Sequence[int]  # P of each cluster
    loss: Callable[[Any], Any]  # parameters -> loss on data of the server's own

    @property
    def here(self) -> Any:
        """P, the number of workers; the mean staleness is P - 1. May be traced."""
        return jnp.asarray(self.workers)[self.cluster]

    def schedule(self, step: Any) -> Any:
        """The learning rate at a step."""
        return self.rate * self.shape(step)

    def descent(
        self, *before: Any, after: Sequence[Any] = (), momentum: Any = None
    ) -> optax.GradientTransformation:
        """The optimizer, with rules before it and after it."""
        momentum = self.optimizer.momentum if momentum is None else momentum
        rate = optax.scale_by_learning_rate(self.schedule)
        return optax.chain(*before, self.optimizer.direction(momentum), rate, *after)

    def stepped(self, rule: Any, *, direction: Any = None) -> Any:
        """The optimizer with a rule in place of the learning rate."""
        if direction is None:
            direction = self.optimizer.direction(self.optimizer.momentum)
        return optax.chain(direction, rule, optax.scale_by_schedule(self.shape))


@dataclasses.dataclass(frozen=True)
class Cure:
    """A rule for stale gradients, or "plain", which does nothing about them.

    Attributes:
        name: in tables.
        make: trial -> the server's optimizer.
        strength: the range of the rule's own number, tried evenly in its logarithm;
            None where it has none.
        optimizers: the names of those that it goes with; by default all.
    """

    name: str
    make: Callable[[Trial], optax.GradientTransformation]
    strength: tuple[float, float] | None = None
    optimizers: Sequence[str] | None = None


def behind(law: Callable[[Trial], Any]) -> Callable[[Trial], Any]:
    """A law behind the optimizer: a factor of its learning rate."""
    return lambda t: t.descent(after=[dj.scale_by_staleness(law(t))])


def _kardam(t: Trial) -> optax.GradientTransformation:
    """Its filter against as many attackers as it bears. There are none."""
    most = max(t.workers)  # workers that never send do not count in its quantile
    return dj.kardam(
        t.descent(),
        workers=most,
        attackers=(most - 1) // 3,
        frequency=False,
        patience=t.here,
    )


def _zeno(t: Trial) -> optax.GradientTransformation:
    return dj.zeno_plus_plus(
        t.descent(),
        jax.grad(t.loss),
        learning_rate=t.rate,
        rho=t.strength * t.rate,
        eps=0.0,
        refresh_every=10,
    )


_SGD = ("sgd",)  # the rule has an optimizer of its own, or is made for this one

CURES = (
    Cure("plain", lambda t: t.descent()),
    Cure("less momentum", lambda t: t.descent(momentum=1 - t.strength), (0.1, 1.0)),
    Cure(
        "clipping",
        lambda t: t.descent(optax.clip_by_global_norm(t.strength)),
        (0.03, 3.0),
    ),
    # step sizes
    Cure("inverse law", behind(lambda t: dj.modulation.inverse)),
    Cure(
        "inverse law, first",
        lambda t: t.descent(dj.scale_by_staleness(dj.modulation.inverse)),
    ),
    Cure(
        "polynomial law",
        behind(lambda t: dj.modulation.polynomial(t.strength)),
        (0.1, 2.0),
    ),
    Cure(
        "hinge law",
        behind(lambda t: dj.modulation.hinge(t.strength, t.here - 1)),
        (0.03, 3.0),
    ),
    Cure(
        "exponential law",
        behind(lambda t: dj.modulation.exponential(t.strength / t.here)),
        (0.1, 3.0),
    ),
    Cure("capped law", behind(lambda t: dj.modulation.capped(t.here))),
    Cure(
        "delay-adaptive law",
        behind(
            lambda t: dj.modulation.delay_adaptive(
                t.rate, t.here, bound=t.strength * t.rate * t.here
            )
        ),
        (0.1, 3.0),
    ),
    Cure(
        "adaptive 1",
        lambda t: t.stepped(
            dj.step_sizes.adaptive_1(
                t.rate * t.here, 4 * max(t.workers), share=t.strength
            )
        ),
        (0.1, 0.95),
    ),
    Cure(
        "adaptive 2",
        lambda t: t.stepped(
            dj.step_sizes.adaptive_2(t.rate * t.here, 4 * max(t.workers))
        ),
    ),
    Cure(
        "AdaDelay",
        lambda t: t.stepped(
            dj.step_sizes.adadelay(0.1 / t.rate, t.strength / t.rate),
            direction=optax.identity(),
        ),
        (0.0003, 0.03),
        _SGD,
    ),
    Cure(
        "distance cap",
        lambda t: t.stepped(dj.step_sizes.distance_capped(t.rate, t.rate * t.strength)),
        (0.001, 3.0),
    ),
    Cure(
        "DASA",
        lambda t: t.descent(dj.step_sizes.dasa(t.schedule, t.strength)),
        (1.0, 300.0),
    ),
    Cure(
        "DASGD",
        lambda t: dj.step_sizes.dasgd(dj.step_sizes.harmonic(t.rate * t.strength)),
        (10.0, 1000.0),
        _SGD,
    ),
    # corrections
    Cure("DC-ASGD-c", lambda t: t.descent(dj.compensate_delay(t.strength)), (0.01, 10)),
    Cure(
        "DC-ASGD-a",
        lambda t: t.descent(dj.compensate_delay(t.strength, adaptive=True)),
        (0.03, 10.0),
    ),
    Cure("Gap-Aware", lambda t: t.descent(dj.gap_aware(t.schedule))),
    Cure("guided", lambda t: t.descent(dj.guided(t.loss))),
    Cure("late updates", lambda t: t.descent(after=[dj.correct_late_updates()])),
    # momentum
    Cure(
        "DANA",
        lambda t: optax.chain(
            dj.dana(t.optimizer.momentum, workers=max(t.workers)),
            optax.scale_by_learning_rate(t.schedule),
        ),
        optimizers=_SGD,
    ),
    Cure(
        "closed loop",
        lambda t: dj.closed_loop_momentum(t.schedule, 1 - t.strength),
        (0.05, 1.0),
        _SGD,
    ),
    Cure(  # it tunes its own step: a schedule outside would mislead its loop
        "YellowFin",
        lambda t: dj.yellowfin(factor=10 * t.rate, closed_loop=True),
        optimizers=_SGD,
    ),
    # refusals
    Cure(
        "drop stale",
        lambda t: dj.drop_stale(
            t.descent(), jnp.round(t.strength * t.here).astype(jnp.int32)
        ),
        (0.3, 3.0),
    ),
    Cure("Kardam's filter", _kardam),
    Cure("Zeno++", _zeno, (0.001, 1.0)),
)
"""Each as its paper has it, but for the range of its own number, which is ours."""
