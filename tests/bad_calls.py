"""Calls that are easily got wrong, each with the error that a user sees.

A row is a call and, below it, the error: its type, and its text, where `...` stands for
any text. The rows of `COMMANDS` are command lines. `bad_calls_test` makes all of them.
Values that no argument of their kind can have are in `public_calls`.
"""

import dataclasses
import functools
import math
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

import delayjax as dj
import experiments
from delayjax import (
    averaging,
    cluster,
    exchange,
    pipelines,
    stability,
    testing,
    workers,
)
from delayjax.cluster import protocols
from experiments import Experiment, Published, Run, Simulation, figures, tasks
from experiments import draw as draw_command
from experiments.pods import chips, compile_pod
from experiments.running.programs import programs
from experiments.training import methods
from experiments.training.adasync import AdaSync

FOLDER = Path(tempfile.mkdtemp())
SGD, ADAM, KEY = optax.sgd(0.1), optax.adam(0.1), jax.random.key(0)
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
W_ALONE = {"w": PARAMS["w"]}
NAN, INF = math.nan, math.inf

# a cluster, what it did, and meshes
ONE = cluster.constant(1.0)
FOUR = cluster.Cluster(4, cluster.exponential(1.0))
TRACE = cluster.simulate(FOUR, protocols.k_async(1), 12, seed=0)
TABLE = np.ones((9, 2))  # of seconds


def mesh(name, size=4):
    return jax.make_mesh((size,), (name,), axis_types=(AxisType.Auto,))


def like(dtype):
    return jax.tree.map(lambda x: x.astype(dtype), PARAMS)


def stepped(tx, grads=PARAMS, params=PARAMS, state=None, **told):
    """One update of one worker."""
    state = tx.init(PARAMS) if state is None else state
    return tx.update(grads, state, params, **told)


def state_of(tx, params=PARAMS):
    return tx.init(params)


def over_four(tx, workers=4, axis_name="workers"):
    """One update of several workers."""

    def update(_):
        return tx.update(PARAMS, tx.init(PARAMS), PARAMS)

    return jax.eval_shape(jax.vmap(update, axis_name=axis_name), jnp.ones(workers))


def simulated(protocol, cluster=FOUR):
    return dj.cluster.simulate(cluster, protocol, 9, seed=0)


def written(name, text=""):
    path = FOLDER / name
    path.write_text(text)
    return path


def logged(rows, header="update,time_s,worker,read_version"):
    return written("trace.csv", f"{header}\n{rows}\n")


def recorded(rows, header="worker,step,seconds"):
    return written("times.csv", f"{header}\n{rows}\n")


# training


def changed(**arrays):
    return dataclasses.replace(TRACE, **arrays)


BATCHES = jnp.ones((12, 1))


def loss(params, batch):
    return jnp.sum(params["w"] ** 2)


def grad_fn(params, batch, key):
    return {"loss": loss(params, batch)}, params


def replayed(trace=TRACE, grad_fn=grad_fn, tx=SGD, key=KEY, batches=BATCHES, **options):
    training = dj.replay(trace, grad_fn, tx, **options)
    return training.run(training.init(PARAMS, key), batches)


def adapted(cluster=FOUR, batch=4, **changes):
    given = dict(scheme=protocols.k_async(2), interval_seconds=1.0, seed=0)
    given |= dict(loss=lambda metrics: metrics["loss"], max_staleness=8) | changes
    training = dj.adasync(cluster, grad_fn, SGD, **given)
    return jax.eval_shape(training.step, training.init(PARAMS, KEY), jnp.ones(batch))


def locally(batch=6, grad_fn=grad_fn, tx=SGD):
    return dj.local_training(grad_fn, tx, 3)(PARAMS, jnp.ones(batch), KEY)


# workers

MEAN = exchange.mean(SGD)
BEGUN = jnp.zeros(3), MEAN.init(jnp.zeros(3))


def step(state, batch):
    """A correct step of one worker."""
    x, opt_state = state
    grads = jax.grad(lambda x: jnp.mean((x - batch) ** 2))(workers.vary(x))
    updates, opt_state = MEAN.update(grads, opt_state, x)
    return (optax.apply_updates(x, updates), opt_state), {}


def on_four(step=step, state=BEGUN, **options):
    return workers.simulate(step, 4, **options).init(state, jnp.ones((4, 3)))


def on_islands(**axis_name):
    """Two islands of two members; the gradient is taken at parameters that vary so."""
    names, inner = ("groups", "members"), exchange.mean(SGD, axis_name="members")
    tx = averaging.outer(inner, SGD, period=2, axis_name="groups")

    def step(state, batch):
        x, opt_state = state
        grads = jax.grad(lambda x: jnp.sum((x - batch) ** 2))(
            workers.vary(x, **axis_name)
        )
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    state, batch = (jnp.ones(3), tx.init(jnp.ones(3))), jnp.ones((2, 2, 3))
    both = workers.simulate(step, (2, 2), axis_name=names)
    return both.init(state, batch, shared=False)


def run_on_four(step, state):
    return workers.run(step, mesh("workers")).init(state, jnp.ones((4, 3)))


# pipelines

EMBED, BLOCK = (lambda p, batch, key: p * batch), (lambda p, x, key: p * x)
MODEL = {"embed": jnp.ones(()), "blocks": jnp.ones(4), "head": jnp.ones(())}
TWO = pipelines.pipedream(2)
FULL = pipelines.pipedream(2, in_flight="full")


def head(p, x, batch):
    return jnp.mean(p * x)


def parts(block=BLOCK, head=head, **options):
    return pipelines.Parts(EMBED, block, head, **options)


PARTS, STAGES = parts(), mesh("stages", 2)


def piped(how=pipelines.late, parts=PARTS, tx=SGD, schedule=TWO, **options):
    """A step of a pipeline: of `late`, or another one."""
    model = options.pop("model", MODEL) | options.pop("changed", {})
    pipeline = how(parts, tx, schedule, **options)
    state = pipeline.init(model, jnp.ones(4))
    return jax.eval_shape(pipeline.step, state, jnp.ones(4))


def on_stages(schedule=FULL, mesh=STAGES, **options):
    return piped(pipelines.run, schedule=schedule, mesh=mesh, **options)


# experiments

QUADRATIC = tasks.quadratic((0.5, 2.0), noise=0.1)
GRID = {"learning_rate": (0.1, 0.2)}
SOURCE = Simulation(FOUR, protocols.k_async(1))
NAMED = experiments.along({"a": SOURCE, "b": SOURCE}, optax.sgd)


def sgd(learning_rate):
    return optax.sgd(learning_rate)


ARM = {"rule": "sgd"}, sgd


def late(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=2)


def experiment(training=sgd, task=QUADRATIC, grid=GRID, seeds=1, updates=4, **changes):
    given = dict(training=training, task=task, grid=grid, seeds=seeds, updates=updates)
    return Experiment(**given | {"question": "?"} | changes)


def made(training=sgd, **changes):
    return programs(experiment(training, **changes))


def ended(**changes):
    """An experiment that does not end after some updates."""
    return made(updates=None, **changes)


def ran(folder="run", **changes):
    return experiments.run(experiment(**changes), str(FOLDER / folder))


def ran_with(**options):
    return experiments.run(experiment(), **{"workdir": str(FOLDER / "run")} | options)


def of_arms(*arms, **changes):
    return made(None, arms=arms, **changes)


@functools.cache
def finished():
    """A run of two seeds."""
    ran("finished", seeds=2)
    return Run.read(FOLDER / "finished")


def published(**changes):
    given = dict(text="It is less", source="A", said="half", at_most=1.0)
    return Published(**given | {"measure": lambda run: 1.0} | changes)


def drawn(*arguments):
    """The command that draws runs."""
    finished()
    return draw_command.main([str(FOLDER / "finished"), *arguments])


# names of the rows that no function above has
OTHERS = AdaSync, chips, compile_pod, figures, methods, stability, testing

# the library, in the order of its modules
AVERAGING = r"""
over_four(averaging.easgd(optax.sgd))
    TypeError: `inner` must be an Optax transformation, got <function sgd...>.
over_four(averaging.easgd(SGD, 0.1))
    TypeError: easgd() takes 1 positional argument but 2 were given
over_four(averaging.easgd(SGD, order=averaging.by_rank))
    TypeError: by_rank() takes 0 positional arguments but 1 was given
over_four(averaging.easgd(SGD, lock_free=averaging.races))
    TypeError: `lock_free` must be a Races, got <function races...>.
over_four(averaging.easgd(SGD, axis_name="worker"))
    NameError: There is no axis 'worker' here: take the step in workers.simulate or
    workers.run, or under vmap, shard_map or pmap with this `axis_name`.
over_four(averaging.easgd(SGD, axis_name=["workers"]))
    TypeError: `axis_name` must be a name or a tuple of names, got ['workers'].
over_four(averaging.downpour(SGD, server=optax.adam))
    TypeError: `server` must be an Optax transformation, got <function adam...>.
over_four(averaging.local_sgd(SGD))
    TypeError: local_sgd() missing 1 required keyword-only argument: 'period'
over_four(averaging.gossip(SGD, key=0))
    TypeError: `key` must be a key, got 0: write jax.random.key(0).
over_four(averaging.d_psgd(SGD), workers=1)
    ValueError: `averaging.d_psgd` needs two workers or more, got 1.
over_four(averaging.sgp(SGD, participates=True))
    TypeError: `participates` must be a function, got True.
over_four(averaging.wagma(SGD, group_size=3))
    ValueError: `group_size` must be a power of two, got 3.
over_four(averaging.wagma(SGD, lateness=1))
    TypeError: `lateness` must be a function, got 1.
over_four(averaging.adaptive_period(SGD, SGD, sampling_steps=2))
    TypeError: `learning_rate` must be a number, got GradientTransformation....
over_four(averaging.delayed_average(SGD, 1, period=2, merge="corrected"))
    TypeError: `merge` must be a function, got 'corrected'.
over_four(averaging.dga(SGD, lambda step: 2))
    TypeError: `delay` must be a static integer, got <function <lambda>...>.
over_four(averaging.outer(SGD, optax.sgd, period=2))
    TypeError: `server` must be an Optax transformation, got <function sgd...>.
over_four(averaging.outer(SGD, dj.compensate_delay(1.0), period=2))
    TypeError: `server` must take a step from gradients and parameters alone, as
    optax.sgd and optax.adam do: `compensate_delay` needs the extra argument...
over_four(averaging.outer(SGD, SGD, period=2, compress=4))
    TypeError: `compress` must be a function, got 4: write exchange.quantized(4).
over_four(averaging.outer(SGD, SGD, period=2, fragments=lambda path, leaf: None))
    TypeError: `fragments` must be integers, got None at ['b'].
over_four(averaging.outer(SGD, SGD, period=2, fragments=lambda path, leaf: {}[path]))
    KeyError: 'b'
on_islands()
    ValueError: `averaging.outer` got a gradient that is the same on all workers, at the
    root: it is summed already. Take it at workers.vary(params, axis_name=('groups',
    'members')), and exchange it once; `averaging.outer` must be outside of
    optax.MultiSteps.
on_islands(axis_name="groups")
    ValueError: `exchange.mean` got a gradient that is the same on all workers, at the
    root: it is summed already. Take it at workers.vary(params, axis_name=('groups',
    'members')), and exchange it once; `exchange.mean` must be outside of
    optax.MultiSteps.
over_four(averaging.outer(SGD, SGD, period=2, delay=1, axis_name="groups"))
    NameError: There is no axis 'groups' here: take the step in workers.simulate or
    workers.run, or under vmap, shard_map or pmap with this `axis_name`.
over_four(averaging.only_on_visit(SGD, averaging.first_come))
    ValueError: `seconds` must be numbers [T, P], a row for each step, a column for each
    worker, got () of int32.
averaging.first_come(np.ones((3, 4)) * NAN)
    ValueError: `seconds` must be numbers, got nan: use inf to stay away.
averaging.look_ahead(PARAMS, SGD.init(PARAMS), 0.9)
    ValueError: `opt_state` must hold one state of optax.trace, got 0: give
    easgd an inner optimizer with one optax.trace(beta).
"""

CLUSTER = r"""
changed(read_version=TRACE.update + 1)
    ValueError: `Trace` must have read_version <= update < 12, ascending updates from 0
    on, workers below 4, and a `held_until` of each version or none: try
    cluster.load_trace.
changed(update=TRACE.update[::-1])
    ValueError: `Trace` must have read_version <= update < 12, ascending updates from 0
    on, workers below 4, and a `held_until` of each version or none: try
    cluster.load_trace.
changed(update=TRACE.update - 1, read_version=TRACE.read_version - 1)
    ValueError: `Trace` must have read_version <= update < 12, ascending updates from 0
    on, workers below 4, and a `held_until` of each version or none: try
    cluster.load_trace.
changed(worker=TRACE.worker + 4)
    ValueError: `Trace` must have read_version <= update < 12, ascending updates from 0
    on, workers below 4, and a `held_until` of each version or none: try
    cluster.load_trace.
changed(read_version=TRACE.read_version - 1).arrivals(0, 12)
    ValueError: `read_version` of a `Trace` must be at least 0 in training, got -1: the
    first version is 0.
cluster.Cluster(cluster.exponential(1.0), 4)
    TypeError: `workers` must be a static integer, got ServiceTime(mean=1.0,
    tail_rate=1.0).
cluster.Cluster(4)
    TypeError: Cluster.__init__() missing 1 required positional argument: 'service'
cluster.Cluster(4, "exponential")
    TypeError: `service` must be a service time or one for each worker, got 'e': write
    for example cluster.constant(1.0).
cluster.Cluster(4, 1.0)
    TypeError: `service` must be a service time or one for each worker, got 1.0: write
    for example cluster.constant(1.0).
cluster.Cluster(4, [])
    ValueError: `service` must be one service or 4, got 0.
cluster.Cluster(4, ONE, slowdown={0: 2.0})
    ValueError: `slowdown` must hold 4 positive, finite factors, or cluster.Slowdown
    objects alone, got (0,).
simulated(protocols.k_async(1), cluster.Cluster(4, cluster.exponential))
    TypeError: exponential() takes 1 positional argument but 2 were given
cluster.exponential(rate=2.0)
    TypeError: exponential() got an unexpected keyword argument 'rate'
cluster.exponential("1s")
    TypeError: `mean_seconds` must be a number, got '1s'.
cluster.empirical("times.csv")
    TypeError: `samples` must hold real numbers, got 'times.csv'.
cluster.simulate(protocols.k_async(1), FOUR, 9, seed=0)
    TypeError: `cluster` must be a Cluster, got k_async(1).
cluster.simulate(FOUR, protocols.k_async(1), 9, seed=0, seconds="1h")
    TypeError: `seconds` must be a number, got '1h'.
cluster.simulate(FOUR, [protocols.k_async(1)], 9, seed=0)
    TypeError: `protocol` must be a function, got [k_async(1)].
simulated(lambda server: None)
    ValueError: `<lambda>` must serve until `for arrival in server` ends, but returned
    after update 0, at 0 s.
TRACE.staleness_law(burn_in=99)
    ValueError: `burn_in` must leave some gradient, got 99.
TRACE.save("trace.pkl")
    ValueError: `path` must end in .npz or .csv, got 'trace.pkl'.
TRACE.arrivals(5, 3)
    ValueError: `stop` must lie in 5 .. 12, got 3.
TRACE.arrivals(0, 99)
    ValueError: `stop` must lie in 0 .. 12, got 99.
cluster.load_trace("nowhere.csv")
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv'
cluster.load_trace(logged("0,1.0,0,0", header="step,time,rank,version"))
    ValueError: .../trace.csv must have a column 'update', once, got ['step', 'time',
    'rank', 'version']: give `columns` the names for update, time_s, worker,
    read_version, staleness.
cluster.load_trace(logged("0,soon,0,0"))
    ValueError: .../trace.csv, line 2: `time_s` must be a finite number of seconds, or
    a date, got 'soon': correct the row.
cluster.load_trace(logged("0,1.5,0,0\n1,1.0,1,0"))
    ValueError: .../trace.csv, line 3: `time_s` must be equal in all rows of an
    update,... got 1: log in seconds by one clock when the update was done.
cluster.load_trace(logged("0,1.5,0,0\n2,1.7,1,0"))
    ValueError: .../trace.csv, line 3: `update` must count without gaps from 0, got
    2: add the rows between, or give sort=True if they come later.
cluster.load_recorded(recorded("0,1.0", header="worker,seconds"))
    ValueError: .../times.csv must have a column 'step', once, got ['worker',
    'seconds']: give `columns` the names for worker, step, seconds, start, stage.
cluster.load_recorded(recorded("0,0,1.0\n0,1,2.0"))
    ValueError: .../times.csv, line 2 (worker 0, step 0): `worker` must number two
    workers or more, got 0: name another column, or use cluster.empirical(seconds).
cluster.load_recorded(recorded("0,0,1.0"), operations=["forward"])
    ValueError: `operations` needs a column 'operation' of .../times.csv,
    got ['worker', 'step', 'seconds'].
cluster.load_trace(written("log.txt"))
    ValueError: `path` must end in .npz, .csv, .tsv, .jsonl or .parquet (text also in
    .gz), got '.../log.txt'.
cluster.load_trace(logged("1,1.5,0,0\n2,1.7,0,1"), first_update=1)
    ValueError: .../trace.csv, line 2: `read_version` must be fresh somewhere: updates
    seem to be counted from 1, versions from 0, got 0: subtract 1 from all updates, and
    leave out first_update=1.
cluster.Recorded([[1.0]], starts=[[0.0, 1.0]])
    ValueError: `starts` must have shape (1, 1), got (1, 2).
cluster.Recorded(TABLE).service("bootstrap")
    ValueError: `resample` must be in ['wrap', 'steps', 'block'] or an int, got
    'bootstrap'.
cluster.fit(TABLE)
    ValueError: `times` must hold times that differ, got array([[1., 1.], [1., 1.], [1.,
    1.], [1., 1.], [1., 1.], [1., 1.], [1., 1.], [1., 1.], [1., 1.]]).
cluster.fit("times.csv")
    TypeError: `times` must hold real numbers, got 'times.csv'.
cluster.advise(FOUR, protocols=[protocols.k_async(9)])
    ValueError: `k` must lie in 1 .. 4, got 9.
cluster.advise(FOUR, protocols=[protocols.k_async(1), protocols.ringleader()])
    ValueError: `protocols` must use the mean of the gradients, got ringleader(): train
    along their traces with their `aggregation`.
cluster.advise(FOUR, seeds=(0, 1))
    TypeError: `seeds` must be a static integer, got (0, 1).
cluster.visits_to_rounds([0, 1], 1)
    ValueError: `workers` must be a list of integers in 0 .. 0, got [0, 1].
cluster.StalenessLaw(TRACE.staleness)
    ValueError: `pmf` must be the probabilities of staleness 0, 1, ..., got
    array(...): divide counts by their sum.
"""

PROTOCOLS = r"""
simulated(protocols.fedbuff(2))
    TypeError: fedbuff() missing 1 required keyword-only argument: 'concurrency'
simulated(protocols.fedbuff(2, 2))
    TypeError: fedbuff() takes 1 positional argument but 2 were given
simulated(protocols.event_triggered(50))
    ValueError: `probability` must be in [1e-5, 1], got 50.
simulated(protocols.bounded_staleness(2, late="discard"))
    ValueError: `late` must be "drop", "restart" or "wait", got 'discard'.
simulated(protocols.gradient_coding(2))
    TypeError: gradient_coding() missing 1 required positional argument: 'load'
simulated(protocols.groups(2, data="shared"))
    ValueError: `data` must be "dynamic" or "static", got 'shared'.
simulated(protocols.ringleader)
    TypeError: ringleader() takes 0 positional arguments but 1 was given
simulated(lambda server: server.start(0, work=-2.0))
    ValueError: `work` must be finite and positive, got -2.0.
simulated(lambda server: server.start(0, work=NAN))
    ValueError: `work` must be finite and positive, got nan.
simulated(lambda server: server.start(0, limit=-1.0))
    ValueError: `limit` must be in [0, inf], got -1.0.
simulated(lambda server: server.wake(0, -1.0))
    ValueError: `seconds` must be in [0, inf], got -1.0.
simulated(lambda server: server.wake(0, "2s"))
    TypeError: `seconds` must be a number, got '2s'.
simulated(lambda server: server.update(divisor=0.0))
    ValueError: `divisor` must be finite and positive, got 0.0.
protocols.k_async(2).update_seconds(4, FOUR)
    TypeError: `service_time` must be a ServiceTime, got Cluster(workers=4,
    service=ServiceTime(mean=1.0, tail_rate=1.0), slowdown=None, communication=None).
"""

DELAYS = r"""
delays.uniform(0, 4)
    TypeError: `key` must be a key, got 0: write jax.random.key(0).
delays.uniform(KEY, 4, 1)
    ValueError: `low` must not exceed `high`, got 4 and 1.
delays.uniform(KEY, 0.0, 4.0)
    ValueError: `low` must be integers in 0 .. 2147483646, got 0.0.
delays.from_trace(TRACE)
    ValueError: `staleness` must have shape [T] or [T, 1], got (): with several
    gradients per update use `replay`.
delays.per_worker([1, 2, -1, 0])
    ValueError: `delays` must be integers in 0 .. 2147483646, got [1, 2, -1, 0].
over_four(dj.delayed(SGD, delays.per_worker([1, 2, 3]), max_delay=3))
    ValueError: `delays` must have a column for each of 4 workers, got 3.
over_four(dj.delayed(SGD, delays.per_worker([0] * 4, axis_name="data"), max_delay=4))
    NameError: There is no axis 'data' here: take the step in workers.simulate or
    workers.run, or under vmap, shard_map or pmap with this `axis_name`.
stepped(dj.delayed(SGD, delays.uniform, max_delay=4))
    TypeError: `key` must be a key, got Array(0, dtype=int32): write jax.random.key(0).
stepped(dj.delayed(SGD, {"w": delays.Layers([1, 2]), "b": 0}))
    ValueError: `Layers` has 2 delays along axis 0, but a leaf has shape [3, 2] at
    ['w'].
stepped(dj.delayed(SGD, delays.Layers([1, 2, 3])))
    ValueError: `Layers` has 3 delays along axis 0, but a leaf has shape [2] at ['b'].
"""

EXCHANGE = r"""
over_four(exchange.mean(SGD, axis_name="batch"))
    NameError: There is no axis 'batch' here: take the step in workers.simulate or
    workers.run, or under vmap, shard_map or pmap with this `axis_name`.
over_four(exchange.mean(SGD, axis_name=None))
    TypeError: `axis_name` must be a name or a tuple of names, got None.
over_four(exchange.mean(SGD, weight=lambda: 1.0))
    TypeError: <lambda>() takes 0 positional arguments but 1 was given
over_four(exchange.overlapped_mean(dj.compensate_delay(1.0)))
    TypeError: `compensate_delay` needs the extra argument `stale_params`, but
    received... compensate before the mean, or pass `stale_params=` to `update`.
exchange.late_reduce(SGD, "data")
    TypeError: `mesh` must be a Mesh, got 'data'.
exchange.late_reduce(SGD, mesh("workers"))
    ValueError: `mesh` must have axes ('data',), got Mesh('workers': 4,
    axis_types=(Auto,)): name its axes by axis_name=.
stepped(exchange.late_reduce(SGD, mesh("data")))
    ValueError: `exchange.late_reduce` needs gradients that are not summed over data
    yet, of shape (4, 2), got f32[2] at ['b']: take jax.vmap(jax.grad(loss), (None,
    0))(params, parts of the batch).
exchange.late_between_groups(SGD, 2, axis_name="workers")
    ValueError: `axis_name` must name two axes, groups and members, got 'workers'.
exchange.majority(np.ones((5, 4)), KEY)
    TypeError: `key` must be a key, got array(...): write jax.random.key(0).
over_four(exchange.error_feedback(SGD, exchange.random_blocks))
    TypeError: `key` must be a key, got {'b': JitTracer(float32[2]), 'w':
    JitTracer(float32[3,2])}: write jax.random.key(0).
exchange.random_blocks(KEY, 50)
    ValueError: `fraction` must be in (0, 1], got 50.
exchange.detached(PARAMS, SGD.init(PARAMS), 0.5)
    ValueError: `opt_state` must hold one state of error_feedback, got 0: train
    with one error_feedback, and give the state of the whole optimizer.
"""

EXTEND = r"""
extend.averaged(SGD)
    TypeError: averaged() missing 1 required positional argument: 'mix'
over_four(extend.averaged(SGD, lambda model: model))
    TypeError: <lambda>() takes 1 positional argument but 4 were given
over_four(extend.averaged(SGD, lambda step, memory, before, model: model))
    TypeError: `mix` must return (model, memory) with a model like the given model, got
    None for [2] at ['b'].
"""

MODULATION = r"""
stepped(dj.scale_by_staleness(modulation.inverse), staleness="2")
    ValueError: `staleness` handed to `scale_by_staleness` must be a non-negative... -
    1, or a tree with one for each leaf or for each layer, got '2'.
stepped(dj.scale_by_staleness(modulation.inverse(3)), staleness=1)
    TypeError: `law` must be a function, got Array(0.33333334, dtype=float32).
stepped(dj.scale_by_staleness(lambda: 1.0), staleness=1)
    TypeError: <lambda>() takes 0 positional arguments but 1 was given
stepped(dj.scale_by_staleness(lambda s: None), staleness=1)
    TypeError: `law(staleness)` must be a real number, got None.
stepped(dj.scale_by_staleness(lambda s: jnp.ones(2)), staleness=1)
    ValueError: `law(staleness)` must be a scalar, got shape (2,).
modulation.linear(1.0)
    AttributeError: module 'delayjax.modulation' has no attribute 'linear'
"""

PIPELINES = r"""
piped(parts=parts(head=lambda p, x, batch: p * x))
    TypeError: Gradient only defined for scalar-output functions. Output had shape:...
piped(parts=parts(block=lambda p, x, key: jnp.stack([x, x])))
    TypeError: scan body function carry input and carry output must have equal types,
    but they differ: The input carry x has type float32[4] but the... match. Revise the
    function so that all output types match the corresponding input types.
piped(tx=optax.sgd)
    TypeError: `optimizer` must be an optimizer or your function of a delay, got the
    function sgd: write optax.sgd(...).
piped(tx=0.1)
    TypeError: `optimizer` must be an Optax transformation, got 0.1.
piped(tx=dj.compensate_delay(0.1))
    TypeError: `compensate_delay` needs the extra argument `stale_params`, but
    received... compensate before the mean, or pass `stale_params=` to `update`.
piped(forward_point=dj.gradient_params)
    ValueError: `opt_state` must hold one state of `predict_weights`, got 0: wrap the
    whole optimizer, predict_weights(optimizer, horizon).
piped(pipelines.mixed, backward_point=pipelines.backward_params)
    ValueError: `backward_point` must be left out where the schedule stashes weights.
piped(schedule=pipelines.pipedream(8))
    ValueError: `stages` must be at most the 4 layers, got 8.
piped(schedule=pipelines.gpipe(2, 3))
    TypeError: cannot reshape array of shape (4,) (size 4) into shape (3, -1) because
    the product of specified axis sizes (3) does not evenly divide 4
piped(changed={"norm": jnp.ones(())})
    ValueError: `params` must have the parts ('embed', 'blocks', 'head'), got
    ('blocks', 'embed', 'head', 'norm'): give the names of yours, Parts(names=...).
piped(changed={"blocks": jnp.ones(())})
    ValueError: `params` must have blocks of leaves [L, ...], got sizes {'the root':
    ()}.
on_stages(mesh=mesh("data"))
    ValueError: `mesh` must have 2 devices along 'stages', got None.
on_stages(schedule=TWO)
    ValueError: `schedule` must be one microbatch a tick, got PipeDream: use
    pipedream(stages, in_flight="full") or pipemare(stages, 1).
on_stages(schedule=pipelines.pipedream(4, in_flight="full"))
    ValueError: `mesh` must have 4 devices along 'stages', got 2.
on_stages(changed={"blocks": jnp.ones(3)})
    ValueError: shard_map applied to the function 'of_stage' was given argument arrays
    with axis sizes that are not evenly divisible by the corresponding mesh axis sizes:
    ...
on_stages(changed={"blocks": [jnp.ones(())] * 4})
    ValueError: `params` must have stacked layers, got a list of trees.
pipelines.run(parts(), SGD, FULL, mesh("stages", 2)).init(MODEL)
    TypeError: _Stages.init() missing 1 required positional argument: 'batch'
pipelines.two_buffered(4, 2)
    ValueError: `microbatches` must be at least the 4 stages, got 2.
pipelines.Schedule("mine", 2, 2, False, (1,))
    ValueError: `ahead` must be 2 non-negative numbers, got (1,).
pipelines.stage_delays(TWO, PARAMS, {"w": 0})
    ValueError: `stages` must have a stage for 'b', got ['w'].
pipelines.stage_delays(TWO, PARAMS, {"w": 0, "b": 2})
    ValueError: `stages` must be in 0 .. 1, got 2 at 'b'.
pipelines.stage_delays(TWO, PARAMS, {"w": 0, "b": 1, "c": 1})
    ValueError: `stages` must be the beginnings of paths, and no leaf is at ['c'].
pipelines.stage_delays(TWO, PARAMS, {"b": 1}, layers={"w": 2})
    ValueError: `layers` must be an axis of 'w', got 2.
stepped(pipelines.rotated_adam(0.1, is_rotated={"w": True, "b": True}))
    ValueError: `is_rotated` must be False for a leaf with less than two axes, got
    True for shape [2] at ['b'].
pipelines.backward_params(PARAMS, SGD.init(PARAMS))
    ValueError: `opt_state` must hold one state of `discrepancy_correction`, got 0:
    wrap the whole optimizer, discrepancy_correction(optimizer, delay, decay=0.5).
"""

RING = r"""
ring.push(ring.init(PARAMS, 3), W_ALONE)
    ValueError: `tree` must have the structure of the history's items, PyTreeDef({'b':
    *, 'w': *}), got PyTreeDef({'w': *}).
ring.push(ring.init(PARAMS, 3), PARAMS | {"b": jnp.ones((2, 1))})
    ValueError: `tree` must be like the history's items: ['b'] is float32[2, 1], and its
    slots hold float32[2]: make the state with `init` of these parameters.
ring.push(ring.init(PARAMS, 3), like(jnp.complex64))
    ValueError: `tree` must be like the history's items: ['b'] is complex64[2], and its
    slots hold float32[2]: make the state with `init` of these parameters.
ring.read(ring.init(PARAMS, 3), 3, PARAMS)
    ValueError: `age` must lie in 0 .. 2, got 3.
ring.read(ring.init(PARAMS, 3), 1, W_ALONE)
    ValueError: `like` must have the structure of the history's items, PyTreeDef({'b':
    *, 'w': *}), got PyTreeDef({'w': *}).
dj.delayed(SGD, 2, history=ring.cast)
    TypeError: `history` must be a Storage, got <function cast...>.
ring.cast(jnp.int8)
    TypeError: `dtype` must be a floating-point type, got <class ...>.
ring.cast(jnp.bfloat16, storage="host")
    TypeError: `storage` must be a Storage, got 'host'.
ring.on_host(jnp.bfloat16)
    TypeError: on_host() takes 0 positional arguments but 1 was given
ring.sharded("data")
    ValueError: Either `mesh`, for a plain jit, or `num_workers`, for the step of one
    worker, must be given, got None and None.
ring.sharded(mesh("data"))
    TypeError: `axis_name` must be a name or a tuple of names, got Mesh(...).
stepped(dj.delayed(SGD, 2, history=ring.sharded("workers", num_workers=4)))
    NameError: There is no axis ('workers',) here: take the step in workers.simulate
    or workers.run, or under vmap, shard_map or pmap with this `axis_name`.
over_four(dj.delayed(SGD, 2, history=ring.sharded("workers", num_workers=2)))
    ValueError: `num_workers` must be 4, the workers of the axis, got 2.
"""

STEP_SIZES = r"""
stepped(step_sizes.share_of_budget(0.5, 4), staleness={"w": 1, "b": 2})
    TypeError: `share_of_budget` needs one `staleness` for all leaves, got {'w': 1, 'b':
    2}: give the producer one delay, or each part a rule, with optax.partition.
step_sizes.inverse_within_budget(0.5, 4, share=0.9)
    TypeError: inverse_within_budget() got an unexpected keyword argument 'share'
stepped(step_sizes.dasgd(0.1, project=1.0))
    TypeError: `project` must be a function, got 1.0.
"""

WORKERS = r"""
on_four(axis_name="data")
    NameError: There is no axis 'workers' here: take the step in workers.simulate or
    workers.run, or under vmap, shard_map or pmap with this `axis_name`.
workers.simulate(step, 4).init(BEGUN)
    TypeError: workers_of.<locals>.init_fn() missing 1 required positional argument:
    'batch'
on_four(lambda state, batch: (state[0], {}))
    TypeError: `step` must return (state, metrics) with a state like the given state,
    got None for float32[3] at [0].
on_four(lambda state, batch: ((state[0] + batch, state[1]), {}))
    ValueError: The workers' copies of [0] would drift apart: average gradients with
    dj.exchange.mean(...), or give `init` a tree of bools, shared=; False if each worker
    trains its own model.
on_four(lambda x, batch: (x - (0.1 if x[0] > 0 else 0.2), {}), jnp.zeros(3))
    TracerBoolConversionError: Attempted boolean conversion of traced array...
workers.run(step)
    TypeError: run() missing 1 required positional argument: 'mesh'
workers.run(step, None)
    TypeError: `mesh` must be a Mesh, got None.
run_on_four(lambda x, batch: (x - batch, {}), jnp.zeros(3))
    ValueError: The workers' copies of the root would drift apart: average gradients
    with dj.exchange.mean(...), or give `init` a tree of bools, shared=; False if each
    worker trains its own model.
run_on_four(lambda x, b: (x - jax.grad(lambda x: jnp.sum(x * b))(x), {}), jnp.zeros(3))
    ValueError: The step's gradient is summed over the workers, as `vmap` would not:
    write jax.value_and_grad(loss)(workers.vary(params), batch). If you do, a `cond`
    depends on one worker's gradient, as in optax.apply_if_finite: use dj.refusing.
workers.WorkerState(jnp.zeros((4, 3)), (("workers",),)).one(worker=4)
    ValueError: `worker` must lie in 0 .. 3 along 'workers', got 4.
"""

HISTORY = r"""
stepped(dj.delayed(SGD, jnp.bfloat16(3), max_delay=300))
    TypeError: `delay` is bfloat16, which cannot hold all integers up to `max_delay` =
    300: give inject_hyperparams hyperparam_dtype=jnp.float32.
stepped(dj.delayed(SGD, 2), staleness=2**33)
    ValueError: `staleness` handed to `delayed` must be a non-negative integer below
    2^31 - 1, or a tree with one for each leaf, got 8589934592.
stepped(dj.delayed(SGD, 2), state=state_of(dj.delivered(SGD, 2)))
    TypeError: `state` must be a DelayedState, got a DeliveredState: take the state of
    this transformation, and restore a checkpoint into it, as
    flax.serialization.from_state_dict(tx.init(params), state) does.
state_of(dj.delayed(SGD, 2), PARAMS | {"seed": KEY})
    TypeError: `params` must hold numbers, got a PRNG key at ['seed'].
dj.resize_history(state_of(dj.delayed(SGD, 2)), state_of(dj.delayed(SGD, 4), W_ALONE))
    ValueError: `like` must have the structure of `state`, got ['w'] in place of
    ['b']: make it with `init` of the same optimizer and parameters. Only a producer of
    staleness or a rule that refuses may be added or left out.
dj.delayed(2, SGD)
    TypeError: `inner` must be an Optax transformation, got 2.
dj.delayed(SGD, 2, 4)
    TypeError: delayed() takes 2 positional arguments but 3 were given
dj.delayed(SGD, 2, maxdelay=4)
    TypeError: delayed() got an unexpected keyword argument 'maxdelay'
dj.delayed(SGD, 4, max_delay=2)
    ValueError: `delay` must be at most `max_delay` = 2, got 4.
dj.delayed(SGD, 2, warmup=True)
    ValueError: `warmup` must be "fresh", "skip" or "zeros", got True.
stepped(dj.delayed(SGD, [1, 2]))
    ValueError: `delay` must be one value or a prefix of the tree, got [1, 2]: Expected
    list, got {'b': 0, 'w': 1}.
stepped(dj.delayed(SGD, {"w": 1, "bias": 2}))
    ValueError: `delay` must be one value or a prefix of the tree, got {'bias': 2, 'w':
    1}: Dict key mismatch; expected keys: ['bias', 'w']; present keys: ['b', 'w'].
stepped(dj.delayed(SGD, lambda step: None, max_delay=4))
    TypeError: `delay(step)` must be a real number, got None.
jax.jit(lambda: stepped(dj.delayed(SGD, lambda t: 2 if t > 3 else 0, max_delay=4)))()
    TracerBoolConversionError: Attempted boolean conversion of traced array...
stepped(optax.inject_hyperparams(dj.delayed)(inner=SGD, delay=2))
    ValueError: `max_delay` must be given where `delay` is no Python int, got 2 of
    <class ...Array...>: it fixes the number of gradients kept.
stepped(dj.delayed(SGD, 2, keep_params=True), params=None)
    TypeError: `delayed(keep_params=True)` needs the extra argument `params`, but
    received none: call `update(grads, state, params)`, or pass `params=` to `update`.
stepped(dj.delayed(optax.adamw(0.1), 2), params=None)
    ValueError: You are using a transformation that requires the current value of
    parameters, but you are not passing `params` when calling `update`.
stepped(dj.delayed(optax.lbfgs(), 2))
    ValueError: `inner` must not hold optax's scale_by_lbfgs: it pairs the changes
    of... that reads the gradient alone, as optax.sgd or optax.adam do.
stepped(dj.delayed(SGD, 2), grads=None)
    ValueError: `updates` must have the structure of the parameters, PyTreeDef({'b':
    *, 'w': *}), got PyTreeDef(None).
stepped(dj.delayed(SGD, 2), grads=PARAMS | {"b": jnp.ones(3)})
    ValueError: `tree` must be like the history's items: ['b'] is float32[3], and its
    slots hold float32[2]: make the state with `init` of these parameters.
stepped(dj.delayed(SGD, 2), grads=like(int))
    TypeError: `updates` must be floating-point gradients, got int32 at ['b']: cast it,
    or leave it out with optax.masked.
stepped(dj.delayed(SGD, 2), grads=like(jnp.complex64))
    ValueError: `tree` must be like the history's items: ['b'] is complex64[2], and its
    slots hold float32[2]: make the state with `init` of these parameters.
stepped(dj.delayed(SGD, 2), state=state_of(dj.delayed(SGD, 3)))
    ValueError: `max_delay` is 2, but the history in the state has depth 3: change it
    with resize_history(state, tx.init(params)).
stepped(dj.delayed(SGD, 2), state=state_of(dj.delayed(SGD, 2), W_ALONE))
    ValueError: `tree` must have the structure of the history's items, PyTreeDef({'w':
    *}), got PyTreeDef({'b': *, 'w': *}).
stepped(dj.delayed(SGD, 2), state=state_of(dj.delayed(SGD, {"w": 2, "b": 1})))
    ValueError: `max_delay` is 2, but the history in the state has depth 1 and 2:
    change it with resize_history(state, tx.init(params)).
stepped(dj.delayed(SGD, 2, keep_params=True), staleness=1)
    TypeError: `delayed(keep_params=True)` needs the extra argument `stale_params`,
    but... keep_params=True as well, or pass `stale_params=` to `update`.
dj.delayed(SGD, 2)(PARAMS)
    TypeError: 'GradientTransformationExtraArgs' object is not callable
dj.delivered(SGD, 2, idle="skip")
    ValueError: `idle` must be "hold" or "zeros", got 'skip'.
stepped(dj.delivered(SGD, 2), state=state_of(dj.delayed(SGD, 2)))
    TypeError: `state` must be a DeliveredState, got a DelayedState: take the state of
    this transformation, and restore a checkpoint into it, as
    flax.serialization.from_state_dict(tx.init(params), state) does.
"""

RULES = r"""
dj.primal_averaging(SGD, decay=1 - 1e-9)
    ValueError: `decay` must be in [0, 1), got 1.0, the float32 of 0.999999999: give a
    number farther from it.
stepped(dj.dana(0.9, workers=4), worker=4)
    ValueError: `worker` handed to `dana` must be a worker's number, in 0 .. 3, got 4.
state_of(dj.delayed(optax.named_chain(("a", dj.drop_stale(SGD, 2)), ("b", ADAM)), 1))
    ValueError: `inner` must have its whole optimizer inside of the rule that refuses,
    got ['b'][0].count in a OrderedDict: put the rule outside,
    drop_stale(optax.chain(...), bound).
state_of(dj.delayed(optax.contrib.schedule_free(dj.drop_stale(SGD, 2), 0.1), 1))
    ValueError: `inner` must have its whole optimizer inside of the rule that refuses,
    got .b1 in a ScheduleFreeState: put the rule outside, drop_stale(optax.chain(...),
    bound).
stepped(dj.delayed(dj.compensate_delay(1.0), 2))
    TypeError: `compensate_delay` needs the extra argument `stale_params`, but
    received... compensate before the mean, or pass `stale_params=` to `update`.
dj.drop_stale(2, SGD)
    TypeError: `bound` must be a static integer, got GradientTransformation....
stepped(dj.delayed(optax.chain(optax.scale_by_adam(), dj.drop_stale(SGD, 2)), 2))
    ValueError: `inner` must have its whole optimizer inside of the rule that refuses,
    got [0].count in a tuple: put the rule outside, drop_stale(optax.chain(...), bound).
stepped(dj.refusing(SGD, lambda grads, memory, params, **told: True))
    TypeError: cannot unpack non-iterable bool object
stepped(dj.refusing(SGD, lambda grads, memory, params, **told: ("yes", grads, ())))
    TypeError: `accept(gradients, ...)` must be a bool, got 'yes'.
dj.gap_aware(SGD)
    TypeError: `learning_rate` must be a number, got GradientTransformation....
dj.predict_weights(2, SGD)
    TypeError: `inner` must be an Optax transformation, got 2.
dj.gradient_params(PARAMS, state_of(dj.predict_weights(SGD, 2)))
    ValueError: `opt_state` must hold one state of `predict_weights`, got 0: wrap the
    whole optimizer, predict_weights(optimizer, horizon).
dj.gradient_params(state_of(dj.predict_weights(SGD, 2)), W_ALONE)
    TypeError: `params` handed to `gradient_params` must be like the gradients, got None
    for [2] at ['b'].
dj.fedasync(0.5, law=0.5)
    TypeError: `law` must be a function, got 0.5.
stepped(dj.fedasync(0.5), staleness=1)
    TypeError: `fedasync` needs the extra argument `stale_params`, but received none:
    wrap the whole chain, `delayed(optax.chain(...), delay,... over workers hands on no
    old parameters: compensate before the mean, or pass `stale_params=` to `update`.
stepped(dj.fedasync(0.5, law=modulation.polynomial), staleness=1, stale_params=PARAMS)
    TypeError: `law(staleness)` must be a real number, got polynomial(Array(1,
    dtype=int32...)).
stepped(dj.attack(optax.scale(-1.0), attackers=[0]))
    TypeError: `attack` needs the extra argument `worker`, but received none: put
    the... where each update has one gradient, or pass `worker=` to `update`.
dj.kardam(SGD, workers=4, attackers=2)
    ValueError: `workers` must be above twice `attackers`, 2, got 4.
stepped(dj.kardam(SGD, workers=4, attackers=1), worker=0)
    TypeError: `kardam` needs the extra argument `stale_params`, but received none:
    put... hands on the parameters as well, or pass `stale_params=` to `update`.
stepped(dj.kardam(SGD, workers=4, attackers=1), worker=7, stale_params=PARAMS)
    ValueError: `worker` handed to `kardam` must be a worker's number, in 0 .. 3, got
    7.
dj.guided(SGD)
    TypeError: `loss_fn` must be a function, got
    GradientTransformationExtraArgs(init=<function chain.<locals>.init_fn...>,
    update=<function chain.<locals>.update_fn...>).
stepped(dj.guided(lambda x: jnp.sum(x["w"])))
    TypeError: `guided` needs the extra argument `value`, but received none: pass the
    loss of the batch, `value=loss`, or pass `value=` to `update`.
stepped(dj.dana(0.9, workers=4))
    TypeError: `dana` needs the extra argument `worker`, but received none: put the rule
    into `each` of `replay`, or... one gradient, or pass `worker=` to `update`.
stepped(dj.dana(0.9, workers=4), state=state_of(dj.dana(0.9, workers=2)), worker=0)
    ValueError: `workers` is 4, but the state has 2: make the state with `init` of this
    transformation.
"""

TRAINING = r"""
dj.replay(grad_fn, TRACE, SGD)
    TypeError: `grad_fn` must be a function, got Trace(num_workers=4,
    seconds=array([0.80310441, 1.18510612, 1.44847934, 1.53027499, 1.5456122 ,...
    held_until=array([12, 1, 5, 4, 6, 9, 7, 8, 12, 12, 10, 11], dtype=int32)).
dj.replay(TRACE, SGD, grad_fn)
    TypeError: `grad_fn` must be a function, got GradientTransformation....
dj.replay(TRACE, grad_fn, optax.adam)
    TypeError: `tx` must be an Optax transformation, got <function adam...>.
dj.replay(FOUR, grad_fn, SGD)
    TypeError: `trace` must be a trace, or a list of some, got Cluster(workers=4,
    service=ServiceTime(mean=1.0, tail_rate=1.0), slowdown=None, communication=None):
    make it with cluster.simulate(...) or cluster.load_trace(path).
dj.replay("trace.csv", grad_fn, SGD)
    TypeError: `trace` must be a trace, or a list of some, got 'trace.csv': make it with
    cluster.simulate(...) or cluster.load_trace(path).
dj.replay(TRACE, grad_fn, SGD, read_spread=2.0)
    ValueError: `read_spread` must be in [0, 1], got 2.0.
dj.replay(TRACE, grad_fn, SGD, each=modulation.inverse)
    TypeError: `each` must be an Optax transformation, got <function inverse...>.
dj.replay(TRACE, grad_fn, SGD, aggregation="mean")
    TypeError: `aggregation` must be a Aggregation, got 'mean'.
replayed(key=0)
    TypeError: `key` must be a key, got 0: write jax.random.key(0).
replayed(grad_fn=loss)
    TypeError: loss() takes 2 positional arguments but 3 were given
replayed(grad_fn=lambda params, batch, key: params)
    TypeError: `grad_fn` must return (metrics, gradients), got {'b':... 2),
    dtype=float32)}: write for example jax.value_and_grad(loss).
replayed(grad_fn=lambda params, batch, key: (params, 1.0))
    TypeError: `grad_fn` must return (metrics, gradients) with gradients like the
    parameters, got None for float32[2] at ['b'].
replayed(grad_fn=lambda params, batch, key: ({}, params if batch > 0 else params))
    TracerBoolConversionError: Attempted boolean conversion of traced array...
replayed(grad_fn=lambda params, batch, key: ({}, {"w": float(batch)}))
    ConcretizationTypeError: Abstract tracer value encountered where...
replayed(batches=jnp.ones((99, 1)))
    ValueError: `batches` must fit 12 updates, got 99.
replayed(batches=1.0)
    TypeError: object of type 'float' has no len()
replayed(batches=[jnp.ones((12, 1)), jnp.ones((9, 1))])
    ValueError: scan got values with different leading axis sizes: 12, 12, 12, 12, 12,
    12, 9.
replayed(batches=[])
    ValueError: `batches` must have leaves, got none: scan `step`.
replayed(simulated(protocols.n_softsync(1)), batches=jnp.ones((9, 1)))
    ValueError: An update's `arrivals` and `batches` must have a leading axis of 4, got
    shape (1,) at ['batches']: scan `step` over trace.arrivals(start, stop, width=4).
adapted(TRACE)
    TypeError: `cluster` must be a Cluster, got Trace(...
adapted(scheme=protocols.k_async)
    TypeError: `scheme` must be a KScheme, got <function k_async...>.
adapted(scheme=protocols.k_async(9))
    ValueError: `scheme` must have a K in 1 .. 4, got 9.
locally(batch=7)
    TypeError: cannot reshape array of shape (7,) (size 7) into shape (3, -1) because
    the product of specified axis sizes (3) does not evenly divide 7
"""

STABILITY = r"""
stability.Dynamics(3, 0.9)
    TypeError: Dynamics.__init__() takes 2 positional arguments but 3 were given
stability.Dynamics(TRACE.staleness)
    ValueError: `delay` must be a number of updates, or probabilities of sum 1, got
    shape (12, 1), minimum 0.0 and sum 17.
stability.learning_rate_limit(stability.Dynamics(3), 10.0)
    TypeError: `sharpness` must be a number, got Dynamics(momentum=0.0,
    nesterov=False, modulation=None, compensation=0.0, extrapolation=0.0, delay=3).
stability.sharpness(jax.grad(loss), PARAMS, None)
    TypeError: Gradient only defined for scalar-output functions. Output was...
stability.sharpness(loss, PARAMS, None, preconditioner=ADAM.init(PARAMS))
    TypeError: `preconditioner` must be real numbers, got int32.
stability.hessian_eigenvalues(loss, PARAMS, None, count=9)
    ValueError: `count` must be at most 8, got 9.
stability.DelayEquation(1.0)
    TypeError: `service_time` must be a ServiceTime, got 1.0.
stability.workers_decay_rate(0.1, ONE, 4)
    TypeError: `workers` must be a static integer, got ServiceTime(mean=1.0,
    tail_rate=inf).
stability.step_limit(3)
    AttributeError: module 'delayjax.stability' has no attribute 'step_limit'
"""

TESTING = r"""
testing.check(PARAMS, SGD)
    TypeError: `tx` must be an Optax transformation, got {'w': Array([[1., 1.], [1.,
    1.], [1., 1.]], dtype=float32), 'b': Array([1., 1.], dtype=float32)}.
testing.check(SGD, PARAMS, workers=0)
    ValueError: `workers` must be at least 1, got 0.
testing.check(SGD, PARAMS, extra_args={"staleness": 1})
    TypeError: `extra_args` must be a function, got {'staleness': 1}.
testing.check_protocol(protocols.k_async(1))
    TypeError: `make` must be a function without arguments, got k_async(1): write
    check_protocol(lambda: protocol).
"""

# the runner
EXPERIMENT = r"""
made(NAMED, grid=GRID | {"cluster": {"b": 0, "a": 1}})
    ValueError: `grid['cluster']` calls 0 'b', which is 'a': give {'a': 0, 'b': 1}, or
    some of these.
made(experiments.along(TRACE, sgd), updates=99)
    ValueError: `updates` must be at most 12, the updates of the trace, got 99: simulate
    or log more.
experiments.along(SOURCE, sgd, client_steps=4)
    ValueError: `client_steps` needs a `client`, got 4: give its optimizer.
experiments.along(SOURCE, sgd, client=sgd, client_steps=(4, 0))
    ValueError: `client_steps` must be a number of steps, at least 1, or a sequence with
    one for each worker, got (4, 0).
made(experiments.along(SOURCE, sgd, client=optax.sgd(0.1), client_steps=(4, 2, 1)))
    ValueError: `client_steps` must be one number, or one for each of the 4 workers, got
    (4, 2, 1).
experiment(figures=figures.over("learning_rate"))
    TypeError: `figures` must be a list of objects with `draw`, got...
experiment(tables=["results"])
    TypeError: `tables` must be a list of objects with `make`, got ['results'].
experiment(answer="yes")
    TypeError: `answer` must be a list of objects with `answer`, got...
experiments.Effect(metric="train_loss", against="delay", size=experiments.percent(10))
    TypeError: `against` must be settings, as {'delay': 0}, or a function of them, got
    'delay'.
experiments.Effect(metric="train_loss", against={"delay": 0}, size=0.1)
    TypeError: `size` must be percent(..), points(..) or amount(..), got 0.1.
Experiment(question="?", task=QUADRATIC)
    ValueError: `Experiment` needs `training` or `arms`, and not both.
experiment(learning_rate=0.1)
    TypeError: Experiment.__init__() got an unexpected keyword argument
    'learning_rate'
experiment(arms=[ARM])
    ValueError: `Experiment` needs `training` or `arms`, and not both.
experiment(updates=None)
    ValueError: `Experiment` needs one of `updates`, `seconds` and `examples`, got
    [None, None, None]: it says where a run ends.
experiment(updates=1e3)
    ValueError: `updates` must be a whole number from 1 to 2,147,483,647, got 1000.0.
experiment(evaluations="20")
    ValueError: `evaluations` must be a whole number from 1 to 2,147,483,647, got '20'.
experiment(seeds="3")
    ValueError: `seeds` must be a number of seeds, or a tuple of different seeds below
    2,147,483,648, got '3'.
experiment(seeds=(0, -1))
    ValueError: `seeds` must be a number of seeds, or a tuple of different seeds below
    2,147,483,648, got (0, -1).
experiment(static=("rate",))
    ValueError: `static` names no axis of the grid: ['rate'].
experiment(figures=[figures.curves("train_loss"), figures.curves("train_loss")])
    ValueError: `figures` has two with the file name 'train_loss_over_update': give one
    `name=`.
experiment(tuned="rate")
    ValueError: `tuned` names no axis of the grid: ['rate'].
experiment(tuned="learning_rate", tuning_seeds=(0,))
    ValueError: `tuning_seeds` are not reported, but 0 is in `seeds` too: name others.
experiment(search=experiments.Search(repeats=2))
    ValueError: `search` is Search(seeds=6, repeats=2, tolerance=0.01, relative=False,
    most=20000), but no axis of `grid` is a `Range`, so that nothing is searched: give a
    `Range`, or leave `search` out.
experiment(tuning_seeds=3)
    ValueError: `tuning_seeds` is 3, but nothing is tuned: name an axis in `tuned`, or
    leave them out.
experiment(grid={"learning_rate": 0.1})
    ValueError: `grid['learning_rate']` must be a tuple of values, got 0.1: (0.1,) is
    an axis of one value.
experiment(grid={"learning_rate": (True, False)})
    ValueError: `grid['learning_rate']` must hold step sizes, positive numbers or
    schedules, got True.
experiment(grid={"learning_rate": {"low": 0.1, "high": 0.1}})
    ValueError: `grid['learning_rate']` has the same value twice, in float32: (0.1,
    0.1).
experiment(grid={"update": (1, 2)})
    ValueError: `grid` has the axis 'update', the name of another column: choose
    another.
made(grid={"rate": (0.1,)})
    ValueError: `grid` has the axis 'rate', which neither the task nor the training
    takes: they take learning_rate.
made(grid={})
    ValueError: The task or the training takes 'learning_rate', which is no axis of
    `grid`: add it, learning_rate=(value,) for one.
made(late)
    ValueError: The task or the training takes 'delay', which is no axis of `grid`:
    add it, delay=(value,) for one.
made(late, grid=GRID | {"delay": (0, 4)})
    ValueError: `grid['delay']` must not have 4 with learning_rate=0.1: `delay` must be
    at most `max_delay` = 2, got 4.
made(0.1)
    TypeError: `training` must be an Optax transformation, a function that makes one,
    or `along(...)`, `replicas(...)`, `pipelined(...)`, `on_devices(...)`, got 0.1.
made(SGD)
    ValueError: `grid` has the axis 'learning_rate', which neither the task nor the
    training takes: they take no axis.
made(grid={"learning_rate": (-0.1,)})
    ValueError: `grid['learning_rate']` must hold step sizes, positive numbers or
    schedules, got -0.1.
made(task=lambda width: QUADRATIC)
    ValueError: The task or the training takes 'width', which is no axis of `grid`:
    add it, width=(value,) for one.
ended(training=experiments.optimizer(sgd), seconds=5.0)
    ValueError: `seconds` ends a run, but an update takes no time here: give `updates`,
    or train in the time of a cluster, by `along` or `replicas`.
ended(task=tasks.digits_mlp(batch_size=32), examples=10)
    ValueError: `examples` must be at least 32, the examples of an update, got 10: raise
    it, or lower the task's batch size; 0 is the full batch.
AdaSync(FOUR, 1, INF, 0)
    ValueError: `updates` must be a whole number from 1 to 2,147,483,647, got 0.
experiments.Arm(training=sgd, updates=-5)
    ValueError: `updates` must be a whole number from 1 to 2,147,483,647, got -5.
experiments.Arm(training=sgd, updates=5, seconds=2.0)
    ValueError: `Arm` takes at most one of `updates` and `seconds`, got [5, 2.0]: it
    says where a run ends.
experiments.Arm(training=sgd, seconds=-2.0)
    ValueError: `seconds` must be positive and finite, got -2.0.
ended(examples=100)
    ValueError: `examples` ends a run, but the task does not say how many examples a
    batch has: give `updates`.
of_arms({"rule": "sgd"}, sgd)
    ValueError: not enough values to unpack (expected 2, got 1)
of_arms(("sgd", sgd))
    TypeError: `labels` of an arm must be a mapping {name: value}, got 'sgd': name it,
    as in {'rule': 'sgd'}.
of_arms(ARM, ARM)
    ValueError: `arms` or `grid` make two cells with the same columns (rule=sgd,
    learning_rate=0.1): give each value once, the arms different labels, or the values
    of an axis names, as in grid={'law': {'none': f}}.
of_arms(({"learning_rate": 1}, sgd))
    ValueError: `arms` have the label 'learning_rate', which is an axis of `grid` too:
    name one of them otherwise.
of_arms(({"seed": 1}, sgd))
    ValueError: `arms` have the label 'seed', the name of another column: choose
    another (seeds are `seeds`).
made(task=tasks.Task(jnp.ones, loss, lambda *given: None, len))
    ValueError: The task's `batches`(0, 0, 1) must return arrays of shape [1, ...], a
    batch for each update, got no array.
made(task=tasks.quadratic(0.5))
    ValueError: The training with learning_rate=0.1 fails: matmul input operand 0 must
    have ndim at least 1, but it has ndim 0
tasks.digits_mlp(workers=4, concentration=0.0)
    ValueError: `concentration` must be positive and `workers` no more than the
    examples, got 0.0 and 4 of 1348.
tasks.digits_mlp(test_fraction=25)
    ValueError: `batch_size` must lie in 0 .. 0, the number of training examples, got
    32; 0 is the full batch.
tasks.char_lm(heads=5)
    ValueError: `width` must be a multiple of `heads`, got 32 and 5.
tasks.tokens("nowhere/*.bin", vocab=16)
    FileNotFoundError: `pattern`: no file matches 'nowhere/*.bin'. Name the shards by
    a path or a pattern, as in /data/*.bin.
experiments.optimizer(sgd, workers=4, groups=3)
    ValueError: `groups` must divide `workers=4`, got 3: a group has workers / groups
    members.
experiments.on_devices(sgd, sharding=lambda path, shape: None)
    ValueError: `sharding` says how the devices of one worker share its parameters,
    but `model=1` gives it one device: set `model`.
made(experiments.on_devices(sgd), task=tasks.breast_cancer(batch_size=6))
    ValueError: The training with learning_rate=0.1 fails: `workers` must divide the
    examples of a batch, got 4 workers and batches of [6, 30]: change the task's batch
    size.
made(experiments.along(SOURCE, sgd, each=0.5))
    ValueError: The training with learning_rate=0.1 fails: TypeError: `each` must be an
    Optax transformation, got 0.5.
made(experiments.along(SOURCE, sgd, read_spread=2.0))
    ValueError: The training with learning_rate=0.1 fails: `read_spread` must be in
    [0, 1], got 2.0.
made(experiments.along({"a": SOURCE}, sgd))
    ValueError: The task or the training takes 'cluster', which is no axis of `grid`:
    add it, cluster=(value,) for one.
made(experiments.along(Simulation(4, protocols.k_async(1)), sgd))
    TypeError: `cluster` must be a Cluster, got 4.
made(experiments.along(Simulation(FOUR, protocols.k_async), sgd))
    TypeError: `k` must be a static integer, got <delayjax._src.cluster.server.Server
    object...>.
ended(training=experiments.along(TRACE, sgd), seconds=1e-9)
    ValueError: `seconds` must be at least ..., the time of the first update under seed
    0, got 1e-09: raise it.
made(experiments.replicas(methods.eager_sgd("often"), FOUR, sgd))
    ValueError: `trigger` must be 'solo' or 'majority', got 'often'.
made(experiments.replicas(methods.ad_psgd(), cluster.Cluster(3, ONE), sgd))
    ValueError: The training with learning_rate=0.1 fails: `averaging.ad_psgd` needs an
    even number of workers, got 3.
made(experiments.replicas(methods.dasgd(2, 4), cluster.Cluster(4, ONE), sgd))
    ValueError: The training with learning_rate=0.1 fails: `delay` must be at most 2,
    got 4: use dga.
made(experiments.replicas(methods.gossip(), cluster.Cluster(1, ONE), sgd))
    ValueError: The training with learning_rate=0.1 fails: `averaging.gossip` needs
    two workers or more, got 1.
made(experiments.pipelined(lambda parts: None), grid={})
    ValueError: `task` must have `parts` to be trained by `pipelined`: cut its model,
    as in tasks.char_lm(in_parts=True).
"""

RUN = r"""
Run.read(finished().folder, finished().folder)
    ValueError: `folders` must name one folder or several, each once, got...: a run read
    twice would count its seeds twice.
Run.read()
    ValueError: `folders` must name one folder or several, each once, got...
ran(tuned="learning_rate", tuned_by="test_accuracy")
    ValueError: `tuned_by`: the run has no 'test_accuracy'; it has learning_rate,...
    train_loss,...
ran(tuned="learning_rate", tuned_by=figures.TimeTo("train_loss", 0.1))
    ValueError: `tuned_by` needs 'seconds', which the run will not have: name one of its
    settings and metrics, learning_rate,... train_loss,...
ran(metrics={"norm": lambda model: 0.0})
    ValueError: The training fails: TypeError: <lambda>() takes 1 positional argument
    but 2 were given
ran(metrics={"norm": lambda model, task: model.params})
    ValueError: The training fails: TypeError: cannot reshape array of shape (2, 2)
    (size 4) into shape (1, 2) (size 2)
ran(metrics={"learning_rate": lambda model, task: 0.0})
    ValueError: `evaluate` or `metrics` has the metric 'learning_rate', the name of
    another column: choose another.
ran(metrics={"norm": lambda model, task: model.parameters})
    ValueError: The training fails: AttributeError: 'Model' object has no attribute
    'parameters'
ran(metrics={"train_loss": lambda model, task: 0.0})
    ValueError: `metrics` has 'train_loss', which the task's `evaluate`
    returns already: choose another name.
ran_with(workdir="")
    ValueError: --workdir is empty: give the folder to write to.
ran_with(shard=(2, 2))
    ValueError: --shard=2/2 has no cell: the grid has 2, so that i must be less than
    2.
ran_with(checkpoint_every=0)
    ValueError: `checkpoint_every` must be at least 1 update, got 0.
ran_with(profile=range(9, 12))
    ValueError: `profile` must lie in 0 .. 4, the updates of the run, got 9,12.
ran_with(workdir=str(written("file.txt") / "run"))
    ValueError: --workdir=.../file.txt/run cannot be written (Not a directory): choose
    a folder of your own.
finished() and ran("finished", seeds=2, grid={"learning_rate": (0.3,)})
    ValueError: --workdir=.../finished holds another run: the cells of the programs,
    code... to go on with it, or remove the folder to begin again.
Run.read("nowhere")
    ValueError: nowhere holds no finished run: there is no nowhere/results.csv.
Run.read(written("file.txt"))
    ValueError: .../file.txt holds no finished run: there is no
    .../file.txt/results.csv.
figures.over()
    TypeError: over() missing 1 required positional argument: 'x'
figures.over("delay", "train_loss").draw(finished())
    AbsentError: the run has no 'delay'; it has learning_rate, seed, updates,
    examples,... staleness_p99, staleness_max, dropped, dropped_in_row.
figures.best_step("delay", "learning_rate").draw(finished())
    AbsentError: the run tunes no 'learning_rate'; it tunes nothing.
figures.curves("test_error").draw(finished())
    AbsentError: the run has no 'test_error'; it has learning_rate, seed, update,
    examples, train_loss.
figures.curves(against="epoch").draw(finished())
    AbsentError: the run has no 'epoch'; it has learning_rate, seed, update,
    examples, train_loss.
figures.gantt().draw(finished())
    ValueError: the run has no traces.
figures.histogram("train_loss")
    AttributeError: module 'experiments.figures' has no attribute 'histogram'
published(measure=None)
    ValueError: `Published` 'It is less' needs `measure` with `at_least` or `at_most`,
    or none of the three: then it cannot be tested here.
published(at_least=2.0)
    ValueError: `Published` 'It is less' needs `at_least` <= `at_most`, got 2.0 and
    1.0: no number is within them.
published(chosen="latter")
    ValueError: `Published` 'It is less' needs `chosen` among first, later, unseen, got
    'latter'.
experiments.claims.Record("loss", len, INF, 0.1)
    ValueError: `Record` 'loss' needs a finite value and spread, got inf and 0.1.
experiments.measures.mean("train_loss", learning_rate=0.3)(finished())
    AbsentError: no row has {'learning_rate': 0.3}: choose of the values
    {'learning_rate': [0.1, 0.2]}.
drawn("--trace=trace.csv")
    ValueError: give folders of runs, or --trace=FILE.
draw_command.main(["--trace=trace.csv"])
    ValueError: --trace needs --out=DIR.
chips.topology("v5e")
    PodError: `topology` must be CHIP:AxB or CHIP:AxBxC, as v5e:4x4, v5e:16x16,...
    axis at most 16 of v4, 16 of v5e, 28 of v5p, 16 of v6e, 16 of tpu7x.
compile_pod.main(experiment(), "v5e:2x3x")
    SystemExit: error: `topology` must be CHIP:AxB or CHIP:AxBxC, as v5e:4x4,... axis
    at most 16 of v4, 16 of v5e, 28 of v5p, 16 of v6e, 16 of tpu7x.
"""

# `python -m` and the rest, with two logs: job.csv, and no_steps.csv without steps
COMMANDS = r"""
experiments.advise job.csv job.csv
    SystemExit: error: give one file of times, got ['job.csv', 'job.csv']: as in
    python -m experiments.advise times.csv.
experiments.advise nowhere.csv
    SystemExit: error: there is no file nowhere.csv: give the path of the log.
experiments.advise no_steps.csv
    SystemExit: error: no_steps.csv must have a column 'step', once, got ['worker',
    'seconds']: give `columns` the names for worker, step, seconds, start, stage.
experiments.advise job.csv --out=nowhere/advice.html
    SystemExit: error: --out=nowhere/advice.html: there is no folder nowhere: make it.
experiments.advise job.csv --workers=-1
    IllegalFlagValueError: flag --workers=-1: -1 is not a non-negative integer
experiments.advise job.csv --workers=two
    IllegalFlagValueError: flag --workers=two: invalid literal for int() with base 10:
    'two'
experiments.advise job.csv --seeds=0
    SystemExit: error: `seeds` must be at least 2, got 0.
experiments.advise job.csv --noise=nan
    SystemExit: error: `noise` must be finite and non-negative, got nan.
experiments.advise job.csv --target=1%
    IllegalFlagValueError: flag --target=1%: could not convert string to float: '1%'
experiments.advise job.csv --step_seconds=0.5
    SystemExit: error: `step_seconds` must be a number or have shape (5,), with a mean
    of 2 s or more, got 0.5: give the seconds of whole steps.
experiments.advise job.csv --resample=99
    SystemExit: error: `resample` must lie in 1 .. 5, got 99.
experiments.advise job.csv --resample=random
    SystemExit: error: `resample` must be in ['wrap', 'steps', 'block'] or an int,
    got 'random'.
experiments.advise job.csv --columns=worker=rank
    SystemExit: error: job.csv must have a column 'rank', once, got ['worker', 'step',
    'seconds']: give `columns` the names for worker, step, seconds, start, stage.
experiments.advise job.csv --operations=forward
    SystemExit: error: `operations` needs a column 'operation' of job.csv, got
    ['worker', 'step', 'seconds'].
experiments.advise job.csv --start_seconds=first
    SystemExit: error: job.csv must have a column 'start', once, got ['worker', 'step',
    'seconds']: give `columns` the names for worker, step, seconds, start, stage.
experiments.advise job.csv --momentum=1
    SystemExit: error: `momentum` must be in [0, 1), got 1.0.
experiments.advise job.csv --protocols=ssp
    UnrecognizedFlagError: Unknown command line flag 'protocols'
experiments.book --workdir=book --only=softsink
    UsageError: --only=softsink is no config of the book: default, constant_delay,...
    two_levels, a2sgd, imagenet, tokens_pod, pipeline_tokens.
experiments.book --workdir=book --jobs=0
    IllegalFlagValueError: flag --jobs=0: 0 is not a positive integer
experiments.book --workdir=book --size=medium
    IllegalFlagValueError: flag --size=medium: value should be one of <small|full>
experiments.book --workdir=book softsync
    UsageError: unknown arguments: softsync
"""
