"""Delayed-gradient optimization in JAX: the cost of late gradients, and remedies."""

import importlib as _importlib
import pkgutil as _pkgutil
import typing as _typing

from delayjax._src.cluster.protocol import Aggregation as Aggregation
from delayjax._src.history.delayed import delayed as delayed
from delayjax._src.history.delayed import staleness as staleness
from delayjax._src.history.delivered import delivered as delivered
from delayjax._src.history.injected import inject_staleness as inject_staleness
from delayjax._src.history.resize import resize_history as resize_history
from delayjax._src.history.resize import strip_history as strip_history
from delayjax._src.rules.attack import attack as attack
from delayjax._src.rules.closed_loop_momentum import (
    closed_loop_momentum as closed_loop_momentum,
)
from delayjax._src.rules.compensate_delay import compensate_delay as compensate_delay
from delayjax._src.rules.correct_late_updates import (
    correct_late_updates as correct_late_updates,
)
from delayjax._src.rules.dana import dana as dana
from delayjax._src.rules.delayed_nesterov import delayed_nesterov as delayed_nesterov
from delayjax._src.rules.fedasync import fedasync as fedasync
from delayjax._src.rules.gap_aware import gap_aware as gap_aware
from delayjax._src.rules.guided import guided as guided
from delayjax._src.rules.kardam import kardam as kardam
from delayjax._src.rules.ordered_momentum import ordered_momentum as ordered_momentum
from delayjax._src.rules.predict_weights import gradient_params as gradient_params
from delayjax._src.rules.predict_weights import predict_weights as predict_weights
from delayjax._src.rules.primal_averaging import primal_averaging as primal_averaging
from delayjax._src.rules.refusing import drop_stale as drop_stale
from delayjax._src.rules.refusing import refusing as refusing
from delayjax._src.rules.scale_by_staleness import (
    scale_by_staleness as scale_by_staleness,
)
from delayjax._src.rules.yellowfin import yellowfin as yellowfin
from delayjax._src.rules.zeno_plus_plus import zeno_plus_plus as zeno_plus_plus
from delayjax._src.training.adasync import adasync as adasync
from delayjax._src.training.local_training import local_training as local_training
from delayjax._src.training.replay import Replay as Replay
from delayjax._src.training.replay import replay as replay
from delayjax._src.training.state import ReplayState as ReplayState
from delayjax._src.training.update import ReplayReport as ReplayReport

if _typing.TYPE_CHECKING:
    from delayjax import averaging as averaging
    from delayjax import cluster as cluster
    from delayjax import delays as delays
    from delayjax import exchange as exchange
    from delayjax import extend as extend
    from delayjax import modulation as modulation
    from delayjax import pipelines as pipelines
    from delayjax import ring as ring
    from delayjax import stability as stability
    from delayjax import step_sizes as step_sizes
    from delayjax import testing as testing
    from delayjax import workers as workers
else:  # not for type checkers, which would accept any name of the module
    _MODULES = [m.name for m in _pkgutil.iter_modules(__path__) if m.name != "_src"]

    def __getattr__(name):
        """Loads a module on first use, because a training run needs few modules."""
        if name in _MODULES:
            return _importlib.import_module(f"delayjax.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_MODULES})


__version__ = "0.1.0"
