"""Delayed-gradient optimization in JAX: what lateness costs, and which cure works."""

from delayjax import averaging as averaging
from delayjax import cluster as cluster
from delayjax import combine as combine
from delayjax import compensation as compensation
from delayjax import delays as delays
from delayjax import exchange as exchange
from delayjax import modulation as modulation
from delayjax import ring as ring
from delayjax import stability as stability
from delayjax import workers as workers
from delayjax.adasync import adasync as adasync
from delayjax.compensation import compensate_delay as compensate_delay
from delayjax.compensation import gap_aware as gap_aware
from delayjax.delayed import delay_gradients as delay_gradients
from delayjax.delayed import delayed as delayed
from delayjax.delayed import staleness as staleness
from delayjax.inject import inject_staleness as inject_staleness
from delayjax.modulation import drop_stale as drop_stale
from delayjax.modulation import scale_by_staleness as scale_by_staleness
from delayjax.replay import Replay as Replay
from delayjax.replay import ReplayState as ReplayState
from delayjax.replay import replay as replay
from delayjax.ring import resize_history as resize_history
from delayjax.ring import strip_history as strip_history

__version__ = "0.1.0"
