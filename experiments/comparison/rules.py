"""The rows of the comparison: published rules for stale gradients, and controls."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from experiments.training.ranges import LINEAR, Range, Space


class Optimizer(NamedTuple):
    """An optimizer that rules are combined with.

    Attributes:
        direction: 1 - momentum -> a transformation of gradients into directions; the
            update is the direction times minus the learning rate.
        learning_rate: the range in which the learning rate is searched.
        nesterov: `direction` with Nesterov's momentum; None if `direction` has it.
    """

    direction: Callable[[Any], optax.GradientTransformation]
    learning_rate: Range
    nesterov: Callable[[Any], optax.GradientTransformation] | None = None

    @property
    def space(self) -> Space:
        """{name: range} of the optimizer's numbers that are searched."""
        return {"learning_rate": self.learning_rate, "decay": MOMENTUM}


def _sgd(decay: Any) -> optax.GradientTransformation:
    # with an average of gradients the best learning rate depends less on the momentum
    return optax.ema(1 - decay, debias=False)


def _nesterov_sgd(decay: Any) -> optax.GradientTransformation:
    return quasi_hyperbolic(decay, 1 - decay)


def _adam(decay: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(1 - decay)


def _nesterov_adam(decay: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(1 - decay, nesterov=True)


def _muon(decay: Any) -> optax.GradientTransformation:
    muon = optax.contrib.muon(1.0, beta=1 - decay, consistent_rms=0.2)
    return optax.chain(muon, optax.scale(-1.0))


OPTIMIZERS = {
    "sgd": Optimizer(_sgd, Range(0.003, 10.0), _nesterov_sgd),
    "adam": Optimizer(_adam, Range(1e-4, 0.3), _nesterov_adam),
    "muon": Optimizer(_muon, Range(3e-4, 1.0)),
}
"""SGD with momentum m_t = beta m_{t-1} + (1 - beta) g_t, Adam and Muon."""

MOMENTUM = Range(0.01, 1.5)
"""The range of `decay` = 1 - beta: the momentum beta lies between -0.5 and 0.99."""


class Trial(NamedTuple):
    """The parts that a row's optimizer is made of, in one training."""

    optimizer: Optimizer
    numbers: Mapping[str, Any]  # {name: value} of the row's space; may be traced
    shape: optax.Schedule  # step -> factor of the learning rate
    mean: Any  # the mean staleness, int32 []; may be traced
    most: int  # the number of workers of the largest cluster
    updates: int  # the number of updates of the training
    loss: Callable[[Any], Any]  # parameters -> loss on a batch of the server

    @property
    def rate(self) -> Any:
        """The learning rate, before `shape` scales it."""
        return self.numbers["learning_rate"]

    @property
    def number(self) -> Any:
        """The number of the rule that the search tunes: "rule_number" in its space."""
        if "rule_number" not in self.numbers:
            raise ValueError(
                "`trial.number` needs a range: give the Rule"
                ' space={"rule_number": Range(..)}.'
            )
        return self.numbers["rule_number"]

    @property
    def workers(self) -> Any:
        """P, the number of workers; may be traced."""
        return self.mean + 1

    @property
    def direction(self) -> optax.GradientTransformation:
        """The optimizer without its learning rate."""
        return self.optimizer.direction(self.numbers["decay"])

    def schedule(self, step: Any) -> Any:
        """The learning rate at a step."""
        return self.rate * self.shape(step)

    def descent(
        self, *before: Any, after: Sequence[Any] = (), direction: Any = None
    ) -> optax.GradientTransformationExtraArgs:
        """The optimizer in a chain: `before`, direction, learning rate, `after`."""
        direction = self.direction if direction is None else direction
        rate = optax.scale_by_learning_rate(self.schedule)
        return optax.chain(*before, direction, rate, *after)

    def stepped(
        self, rule: Any, *, direction: Any = None
    ) -> optax.GradientTransformationExtraArgs:
        """The optimizer in a chain where a rule replaces the learning rate."""
        direction = self.direction if direction is None else direction
        return optax.chain(direction, rule, optax.scale_by_schedule(self.shape))


BASELINES, STEP_SIZE, CORRECTION, MOMENTA, REFUSAL, WITHOUT_DELAY = KINDS = (
    "baseline",
    "step size",
    "correction",
    "momentum",
    "refusal",
    "helps without delay too",
)
"""The kinds of rows, in the order in which tables show them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A row of the comparison: a rule, or plain delay.

    Attributes:
        name: the name of the row in tables.
        make: trial -> the server's optimizer.
        space: {name: range} of the numbers that only this row searches.
        shared: names of the optimizer's numbers that the row searches too:
            `learning_rate`, and `decay` (1 - momentum).
        kind: one of `KINDS`.
        function: the function of delayjax, as a reader calls it.
        source: who published the rule; "ours" if nobody did, to our knowledge.
        optimizers: the optimizers, by name, that the rule is run with; default all.
        output: (parameters, optimizer's state) -> the parameters that are evaluated.
        gradients: the gradients that are computed for each gradient that arrives.
        at_constant: whether the row is run where all delays are equal; False if the
            rule is only another learning rate there.
        reads_delay: whether the rule receives the staleness or the old parameters: then
            `delay_blind_twin` makes a row without this knowledge.
        undelayed: whether the row is also run without delay, where it may help too.
        contains: {"rule": the name of another row, number: value}: this row equals the
            other one if the numbers that only this row searches are off, or have these
            values. None: plain delay, if its numbers are searched, others can be off.
    """

    name: str
    make: Callable[[Trial], optax.GradientTransformation]
    space: Space = dataclasses.field(default_factory=dict)
    shared: Sequence[str] = ("learning_rate", "decay")
    kind: str = BASELINES
    function: str = ""
    source: str = ""
    optimizers: Sequence[str] | None = None
    output: Callable[[Any, Any], Any] = lambda params, opt_state: params
    gradients: float = 1.0
    at_constant: bool = True
    reads_delay: bool = False
    undelayed: bool = False
    contains: Mapping[str, Any] | None = None

    def contained(self) -> Mapping[str, Any] | None:
        """`contains`, or by default plain delay; None if this row contains no other."""
        has_all = {"learning_rate", "decay"} <= {*self.shared} and self.space
        off = all(one.off is not None for one in self.space.values())
        return self.contains or ({"rule": BASELINE.name} if has_all and off else None)

    def whole_space(self, optimizer: Optimizer) -> Space:
        """{name: range} of all searched numbers: the optimizer's, then the rule's."""
        known = optimizer.space
        return {name: known[name] for name in self.shared} | dict(self.space)


class AverageState(NamedTuple):
    """State of `averaging`."""

    inner_state: Any
    average: Any  # the average of the parameters, in their structure
    count: jax.Array  # the number of updates, int32 []


def averaging(
    inner: optax.GradientTransformation, decay: Any
) -> optax.GradientTransformationExtraArgs:
    """An optimizer that keeps an average of the parameters, for their evaluation.

    a_t = a_{t-1} + max(decay, 1/(t + 1)) (x_t - a_{t-1})
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        copied = jax.tree.map(jnp.copy, params)
        return AverageState(inner.init(params), copied, jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None, **extra_args):
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        weight = jnp.maximum(decay, 1 / (state.count + 1))
        average = jax.tree.map(
            lambda a, x: a + weight * (x - a),
            *(state.average, optax.apply_updates(params, updates)),
        )
        return updates, AverageState(inner_state, average, state.count + 1)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def quasi_hyperbolic(decay: Any, share: Any) -> optax.GradientTransformation:
    """A mean of the gradient and a slow momentum: (1 - share) g_t + share m_t.

    m_t = (1 - decay) m_{t-1} + decay g_t (Ma and Yarats, 2019, arXiv:1810.06801).
    """
    slow = optax.ema(1 - decay, debias=False)

    def update_fn(updates, state, params=None):
        momentum, state = slow.update(updates, state, params)
        mixed = jax.tree.map(lambda g, m: g + share * (m - g), updates, momentum)
        return mixed, state

    return optax.GradientTransformation(slow.init, update_fn)


def slow_sgd(
    learning_rate: Any, decay: Any, share: Any
) -> optax.GradientTransformation:
    """SGD along `quasi_hyperbolic`."""
    mixed = quasi_hyperbolic(decay, share)
    return optax.chain(mixed, optax.scale(-learning_rate))


SHARE = Range(0.0, 1.0, off=0.0, scale=LINEAR)
"""The range of the share of a slow momentum."""

TWIN = ", delay-blind twin"
"""The end of the name of a delay-blind twin."""


class BlindState(NamedTuple):
    """State of `delay_blind_twin`."""

    inner_state: Any
    versions: Any  # a ring of the last parameters
    count: jax.Array  # the number of updates, int32 []


def delay_blind_twin(rule: Rule) -> Rule:
    """The twin of a rule that receives the mean staleness at every update.

    It receives the mean staleness as `staleness=`, the parameters that are this many
    updates old as `stale_params=`, and the workers in turn as `worker=`. The difference
    between the rule and its twin is the gain from knowing each delay.
    """

    def make(trial):
        inner = optax.with_extra_args_support(rule.make(trial))

        def init_fn(params):
            versions = dj.ring.init(params, trial.most)
            return BlindState(inner.init(params), versions, jnp.zeros((), jnp.int32))

        def update_fn(updates, state, params=None, **extra_args):
            versions = dj.ring.push(state.versions, params)
            old = dj.ring.read(versions, jnp.minimum(trial.mean, state.count), params)
            means = dict(  # in place of the true values
                staleness=trial.mean,
                stale_params=old,
                worker=state.count % trial.workers,
            )
            updates, inner_state = inner.update(
                updates, state.inner_state, params, **{**extra_args, **means}
            )
            return updates, BlindState(inner_state, versions, state.count + 1)

        return optax.GradientTransformationExtraArgs(init_fn, update_fn)

    return dataclasses.replace(
        rule,
        name=rule.name + TWIN,
        undelayed=False,
        make=make,
        contains=None,
        output=lambda params, state: rule.output(params, state.inner_state),
    )


def _behind(law: Callable[[Trial], Any]) -> Callable[[Trial], Any]:
    """A `make` that puts a law after the optimizer, where it scales the step."""
    return lambda t: t.descent(after=[dj.scale_by_staleness(law(t))])


def _kardam(t: Trial) -> optax.GradientTransformation:
    """Kardam's filter, for the most attackers that it tolerates; here are none."""
    return dj.kardam(
        t.descent(),
        workers=t.most,  # workers that never send do not count in its quantile
        attackers=(t.most - 1) // 3,
        frequency=False,
        patience=t.workers,
    )


def _zeno(t: Trial) -> optax.GradientTransformation:
    return dj.zeno_plus_plus(
        t.descent(),
        jax.grad(t.loss),
        learning_rate=t.rate,
        rho=t.number * t.rate,
        eps=0.0,
        refresh_every=10,
    )


def _server_params(params: Any, opt_state: Any) -> Any:
    """The parameters without the part that was applied ahead of later updates."""
    ahead = optax.tree.get(opt_state, "ahead")
    return jax.tree.map(jnp.subtract, params, ahead)


def _decaying(t: Trial, factor: optax.Schedule) -> Any:
    """The optimizer, with its learning rate multiplied by a further factor."""
    shape = t.shape
    return t._replace(shape=lambda step: shape(step) * factor(step)).descent()


def _schedule_free(t: Trial) -> Any:
    """The optimizer in schedule-free form: gradients between iterate and average."""
    inner = t.descent(direction=t.optimizer.direction(1.0))
    return optax.contrib.schedule_free(inner, t.schedule, b1=1 - t.numbers["decay"])


def _slow_direction(t: Trial) -> Any:
    """The optimizer's direction, with a slow momentum in place of its momentum."""
    slow = quasi_hyperbolic(t.numbers["decay"], t.number)
    return optax.chain(slow, t.optimizer.direction(1.0))


def _one(low: float, high: float, **options: Any) -> Space:
    return {"rule_number": Range(low, high, **options)}


_LARGE = 1e6
"""A bound that no value reaches: it switches a rule off."""
_SLOW = {"decay": Range(0.001, 1.0, off=1.0)}  # beta = 0.9^(1/16) is 1 - 0.0066
_SGD = ("sgd",)  # the rule contains its optimizer, or is published for SGD alone
_LAW = dict(kind=STEP_SIZE, at_constant=False, reads_delay=True)
_RULE = dict(kind=CORRECTION, reads_delay=True)

_NO_MOMENTUM = {"rule": "no momentum"}

BASELINE = Rule(
    "plain",
    lambda t: t.descent(),
    undelayed=True,
    contains={**_NO_MOMENTUM, "decay": 1.0},
)
AGAIN = dataclasses.replace(BASELINE, name="plain, searched again", undelayed=False)
NO_MOMENTUM = Rule(
    "no momentum",
    lambda t: t.descent(direction=t.optimizer.direction(1.0)),
    shared=("learning_rate",),
    undelayed=True,
)

RULES = (
    BASELINE,
    AGAIN,
    NO_MOMENTUM,
    Rule(
        "Nesterov",
        lambda t: t.descent(direction=t.optimizer.nesterov(t.numbers["decay"])),
        kind=WITHOUT_DELAY,
        source="Nesterov 1983; Dozat 2016",
        optimizers=("sgd", "adam"),  # Muon has Nesterov's momentum
        undelayed=True,
    ),
    Rule(
        "linear decay",
        lambda t: _decaying(t, lambda step: 1 - step / t.updates),
        kind=WITHOUT_DELAY,
        function="optax.linear_schedule",
        source="Defazio et al. 2023",
        undelayed=True,
    ),
    Rule(
        "square-root decay",
        lambda t: _decaying(t, lambda step: 1 / jnp.sqrt(1 + t.number * step)),
        _one(0.001, 10.0, off=0.0),
        kind=WITHOUT_DELAY,
        source="Agarwal and Duchi 2011",
        undelayed=True,
    ),
    Rule(
        "schedule-free",
        _schedule_free,
        {"decay": Range(0.01, 0.9, hard=True)},  # the average needs a share above 0
        shared=("learning_rate",),
        kind=WITHOUT_DELAY,
        function="optax.contrib.schedule_free",
        source="Defazio et al. 2024",
        optimizers=("sgd", "adam"),
        output=lambda params, state: optax.contrib.schedule_free_eval_params(
            state, params
        ),
        undelayed=True,
    ),
    Rule(
        "average of the weights",
        lambda t: averaging(t.descent(), t.number),
        _one(0.002, 1.0, off=1.0),
        kind=WITHOUT_DELAY,
        source="Polyak and Juditsky 1992",
        output=lambda params, state: state.average,
        undelayed=True,
    ),
    Rule(
        "one slow momentum",
        lambda t: t.descent(direction=_slow_direction(t)),
        _SLOW | {"rule_number": SHARE},
        shared=("learning_rate",),
        kind=WITHOUT_DELAY,
        source="Ma and Yarats 2019",
        undelayed=True,
        contains=_NO_MOMENTUM,
    ),
    Rule(
        "clipping",
        lambda t: t.descent(optax.clip_by_global_norm(t.number)),
        _one(0.03, 30.0, off=_LARGE),
        kind=WITHOUT_DELAY,
        function="optax.clip_by_global_norm",
        undelayed=True,
    ),
    # step sizes
    Rule(
        "inverse law",
        _behind(lambda t: dj.modulation.inverse),
        function="scale_by_staleness(modulation.inverse), behind",
        source="Zhang et al. 2016",
        **_LAW,
    ),
    Rule(
        "inverse law, first",
        lambda t: t.descent(dj.scale_by_staleness(dj.modulation.inverse)),
        function="scale_by_staleness(modulation.inverse), before",
        source="Zhang et al. 2016",
        **_LAW,
    ),
    Rule(
        "polynomial law",
        _behind(lambda t: dj.modulation.polynomial(t.number)),
        _one(0.0, 2.0, scale=LINEAR, off=0.0),
        function="modulation.polynomial",
        source="Xie et al. 2019",
        **_LAW,
    ),
    Rule(
        "hinge law",
        _behind(lambda t: dj.modulation.hinge(t.number, t.mean)),
        _one(0.003, 3.0, off=0.0),
        function="modulation.hinge",
        source="Xie et al. 2019",
        **_LAW,
    ),
    Rule(
        "exponential law",
        _behind(lambda t: dj.modulation.exponential(t.number / t.workers)),
        _one(0.01, 3.0, off=0.0),
        function="modulation.exponential",
        source="ours",
        **_LAW,
    ),
    Rule(
        "capped law",
        _behind(lambda t: dj.modulation.capped(t.number * t.workers)),
        _one(0.2, 20.0, off=_LARGE),
        function="modulation.capped",
        source="Mishchenko et al. 2022",
        **_LAW,
    ),
    Rule(
        "delay-adaptive law",
        _behind(
            lambda t: dj.modulation.delay_adaptive(
                t.rate, t.workers, bound=t.number * t.rate * t.workers
            )
        ),
        _one(0.1, 10.0, off=_LARGE),
        function="modulation.delay_adaptive",
        source="Koloskova et al. 2022",
        **_LAW,
    ),
    Rule(
        "adaptive 1",
        lambda t: t.stepped(
            dj.step_sizes.share_of_budget(
                t.rate * t.workers, 4 * t.most, share=t.number
            )
        ),
        _one(0.1, 0.95, scale=LINEAR),
        function="step_sizes.share_of_budget",
        source="Wu et al. 2022",
        **_LAW,
    ),
    Rule(
        "adaptive 2",
        lambda t: t.stepped(
            dj.step_sizes.inverse_within_budget(t.rate * t.workers, 4 * t.most)
        ),
        function="step_sizes.inverse_within_budget",
        source="Wu et al. 2022",
        **_LAW,
    ),
    Rule(
        "AdaDelay",
        lambda t: t.stepped(
            dj.step_sizes.adadelay(0.1 / t.rate, t.number / t.rate),
            direction=optax.identity(),
        ),
        _one(0.0001, 0.1),
        shared=("learning_rate",),
        function="step_sizes.adadelay",
        source="Sra et al. 2016",
        optimizers=_SGD,
        kind=STEP_SIZE,
        reads_delay=True,
    ),
    Rule(
        "distance cap",
        lambda t: t.stepped(dj.step_sizes.distance_capped(t.rate, t.rate * t.number)),
        _one(0.001, 10.0, off=_LARGE),
        function="step_sizes.distance_capped",
        source="Dutta et al. 2018",
        kind=STEP_SIZE,
        reads_delay=True,
    ),
    Rule(
        "DASA",
        lambda t: t.descent(dj.step_sizes.dasa(t.schedule, t.number)),
        _one(1.0, 1000.0, off=_LARGE),
        function="step_sizes.dasa",
        source="Dal Fabbro et al. 2024, by a reach",
        kind=STEP_SIZE,
        reads_delay=True,
    ),
    Rule(
        "DASGD",
        lambda t: dj.step_sizes.dasgd(dj.step_sizes.harmonic(t.rate * t.number)),
        _one(10.0, 1000.0),
        shared=("learning_rate",),
        function="step_sizes.dasgd",
        source="Zhou et al. 2018",
        optimizers=_SGD,
        kind=STEP_SIZE,
        reads_delay=True,
    ),
    # corrections
    Rule(
        "DC-ASGD-c",
        lambda t: t.descent(dj.compensate_delay(t.number)),
        _one(0.001, 10.0, off=0.0),
        function="compensate_delay",
        source="Zheng et al. 2017",
        **_RULE,
    ),
    Rule(
        "DC-ASGD-a",
        lambda t: t.descent(dj.compensate_delay(t.number, adaptive=True)),
        _one(0.003, 10.0, off=0.0),
        function="compensate_delay(..., adaptive=True)",
        source="Zheng et al. 2017",
        **_RULE,
    ),
    Rule(
        "Gap-Aware",
        lambda t: t.descent(dj.gap_aware(t.schedule)),
        function="gap_aware",
        source="Barkai et al. 2020",
        **_RULE,
    ),
    Rule(
        "guided",
        lambda t: t.descent(dj.guided(t.loss)),
        function="guided",
        source="Sharma 2021",
        kind=CORRECTION,
        gradients=4 / 3,  # one more loss costs a third of a gradient
    ),
    Rule(
        "late updates",
        lambda t: t.descent(after=[dj.correct_late_updates()]),
        _SLOW,
        shared=("learning_rate",),
        function="correct_late_updates",
        source="Zmushko et al. 2026; ours beyond a delay of 1",
        output=_server_params,
        **_RULE,
    ),
    # momentum
    Rule(
        "DANA",
        lambda t: optax.chain(
            dj.dana(1 - t.numbers["decay"], workers=t.most),
            optax.scale(t.numbers["decay"]),
            optax.scale_by_learning_rate(t.schedule),
        ),
        function="dana",
        source="Hakimi et al. 2019",
        kind=MOMENTA,
        optimizers=_SGD,
        reads_delay=True,
        undelayed=True,  # without delay DANA is Nesterov's momentum
    ),
    Rule(
        "closed loop",
        lambda t: dj.closed_loop_momentum(
            lambda step: t.schedule(step) * t.numbers["decay"], 1 - t.numbers["decay"]
        ),
        function="closed_loop_momentum",
        source="Zhang and Mitliagkas 2019",
        kind=MOMENTA,
        optimizers=_SGD,
        reads_delay=True,
    ),
    Rule(  # it tunes the step itself: a schedule outside of it would mislead its loop
        "YellowFin",
        lambda t: dj.yellowfin(factor=t.rate, closed_loop=True, clip=True),
        shared=("learning_rate",),
        function="yellowfin(closed_loop=True, clip=True)",
        source="Zhang and Mitliagkas 2019; the first 200 updates are its slow start",
        kind=MOMENTA,
        optimizers=_SGD,
        reads_delay=True,
    ),
    # refusals
    Rule(
        "drop stale",
        lambda t: dj.drop_stale(
            t.descent(), jnp.round(t.number * t.workers).astype(jnp.int32)
        ),
        _one(0.3, 30.0, off=_LARGE),
        function="drop_stale",
        source="Gupta et al. 2016",
        kind=REFUSAL,
        at_constant=False,
        reads_delay=True,
    ),
    Rule(
        "Kardam's filter",
        _kardam,
        function="kardam",
        source="Damaskinos et al. 2018",
        kind=REFUSAL,
    ),
    Rule(
        "Zeno++",
        _zeno,
        _one(0.0003, 1.0, off=0.0),
        function="zeno_plus_plus",
        source="Xie et al. 2020",
        kind=REFUSAL,
        gradients=1.1,  # the server computes one gradient in ten updates
    ),
)
"""The rows. Each rule follows its paper; the ranges of the search are ours."""
