"""Bad calls of public functions: none hangs or is silent, each names its argument."""

import re
import signal
import warnings

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.public_calls import CALLS

pytestmark = pytest.mark.runs

SECONDS = 20  # in which a call must be refused; most take some milliseconds

# here Python or JAX refuse the value, clearly, by another name than the argument's
OTHERS = {
    ("refusing", "accept"),  # Python says what it cannot unpack
    ("extend.averaged", "mix"),
    ("averaging.mean_of_state", "periods"),
    ("cluster.simulate", "protocol"),  # `k_async` of a server: `k` is named
    ("adasync", "grad_fn"),  # JAX names the function that answers text
    ("adasync", "interval_seconds"),
    ("averaging.delayed_average", "merge"),
    ("averaging.outer", "compress"),
    ("averaging.outer", "merge"),
    ("averaging.look_ahead", "params"),
    ("averaging.by_rank", "axis_name"),
    ("delays.uniform", "high"),  # an array has no one truth
    ("delays.uniform", "low"),
    ("local_training", "grad_fn"),
    ("replay", "grad_fn"),
    ("ring.cast", "dtype"),
    ("cluster.Cluster", "communication"),
    ("cluster.Cluster", "service"),  # a law that is asked for times
    ("cluster.Cluster", "slowdown"),
    ("cluster.Recorded", "seconds"),  # NaN is a missing time; then the shapes differ
    ("cluster.Communication", "bytes_per_second"),  # an array has no one truth
    ("cluster.Slowdown", "factor"),
    ("cluster.Slowdown", "start_seconds"),
    ("cluster.Slowdown", "stop_seconds"),
    ("cluster.Slowdown", "workers"),  # refused by the cluster
    ("cluster.by_batch", "seconds_of"),
    ("cluster.from_scipy", "distribution"),
    ("cluster.run_time", "start"),
    ("cluster.simulate", "seconds"),  # an array has no one truth
    ("cluster.staleness_law", "cluster"),
    ("cluster.independent", "draw"),
    ("cluster.load_trace", "path"),
    ("cluster.load_recorded", "columns"),  # Python says that it is no mapping
    ("cluster.load_recorded", "path"),
    ("cluster.Trace.arrivals", "start"),  # `stop` must come after it
    ("cluster.Trace.save", "path"),
    ("cluster.markov_stragglers", "service"),
    ("exchange.detached", "params"),
    ("exchange.detached", "strength"),
    ("exchange.error_feedback", "compress"),  # JAX says which trees differ
    ("modulation.inverse", "staleness"),
    ("protocols.mindflayer", "allotted_seconds"),
    ("protocols.mindflayer", "trials"),
    ("protocols.psp", "poll_seconds"),
    ("protocols.psp", "bound"),
    ("protocols.ssp", "bound"),
    ("ring.init", "tree"),
    ("ring.push", "ring"),
    ("ring.read", "age"),
    ("ring.read", "ring"),
    ("stability.Dynamics", "modulation"),  # Python says that it is no function
    ("stability.TraceDynamics", "modulation"),
    ("stability.adam_preconditioner", "second_moment"),
    ("stability.hessian_eigenvalues", "loss"),  # JAX says what it answers
    ("stability.hessian_eigenvalues", "params"),
    ("stability.predict_step_limit", "loss"),
    ("stability.predict_step_limit", "params"),
    ("stability.sharpness", "loss"),
    ("stability.sharpness", "params"),
    ("stability.sharpness", "preconditioner"),  # JAX says where the trees differ
    ("cluster.Slowdown", "workers"),  # NumPy says that the rows differ in length
    ("workers.simulate", "num_workers"),
    ("zeno_plus_plus", "grad_fn"),  # JAX names the function that answers text
    ("workers.run", "axis_name"),  # named as an axis that the mesh lacks
    ("workers.run", "step"),
    ("workers.WorkerState.shardings", "mesh"),
    ("workers.simulate", "step"),
}
ARGUMENTS = [
    (label, name)
    for label, call in CALLS.items()
    for name, (_, bad) in call.arguments.items()
    if not bad.is_empty
]


def stop(*_):
    raise TimeoutError(f"the call is not refused within {SECONDS} s")


def refusal(label, name, value):
    """The error that a call ends in with this value of one argument."""
    call = CALLS[label]
    good = {key: good for key, (good, _) in call.arguments.items()}
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call.use(call.function(**good | {name: value}))
    except (ValueError, TypeError, NameError, AttributeError) as error:
        return error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None


@pytest.mark.parametrize("place", ARGUMENTS, ids=".".join)
@hypothesis.settings(
    max_examples=25,  # of each argument: what is drawn differs between environments
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(data=st.data())
def test_a_bad_value_is_refused_by_the_name_of_its_argument(place, data):
    label, name = place
    value = data.draw(CALLS[label].arguments[name][1])
    error = refusal(label, name, value)
    assert error is not None, f"{label}({name}={value!r}) is accepted"
    if place not in OTHERS:
        assert re.search(rf"[`'\"]{name}\b", str(error)), (place, value, error)


def test_the_names_of_the_exceptions_are_in_the_table():
    assert set(ARGUMENTS) >= OTHERS


def test_the_good_calls_are_good():
    """Else a bad value would be refused for another reason."""
    for label in sorted({label for label, _ in ARGUMENTS})[::3]:
        call = CALLS[label]
        call.use(call.function(**{key: v for key, (v, _) in call.arguments.items()}))
