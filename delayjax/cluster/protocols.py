"""Protocols of a server for the gradients that arrive, by the papers' names.

Each function returns a protocol, a loop over a `Server`'s arrivals. Call the function
and give the result to `simulate`: `simulate(cluster, hardsync(), 100, seed=0)`. A
protocol of your own is any function of a `Server`: give the function itself.
"""

from delayjax._src.cluster.protocols.bounded_staleness import (
    bounded_staleness as bounded_staleness,
)
from delayjax._src.cluster.protocols.bounded_staleness import rennala as rennala
from delayjax._src.cluster.protocols.bounded_staleness import ringmaster as ringmaster
from delayjax._src.cluster.protocols.event_triggered import (
    event_triggered as event_triggered,
)
from delayjax._src.cluster.protocols.fedbuff import fedbuff as fedbuff
from delayjax._src.cluster.protocols.gradient_coding import (
    gradient_coding as gradient_coding,
)
from delayjax._src.cluster.protocols.groups import groups as groups
from delayjax._src.cluster.protocols.groups import (
    progressive_groups as progressive_groups,
)
from delayjax._src.cluster.protocols.ia2sgd import ia2sgd as ia2sgd
from delayjax._src.cluster.protocols.k_scheme import KScheme as KScheme
from delayjax._src.cluster.protocols.k_scheme import hardsync as hardsync
from delayjax._src.cluster.protocols.k_scheme import k_async as k_async
from delayjax._src.cluster.protocols.k_scheme import k_batch_async as k_batch_async
from delayjax._src.cluster.protocols.k_scheme import k_batch_sync as k_batch_sync
from delayjax._src.cluster.protocols.k_scheme import k_sync as k_sync
from delayjax._src.cluster.protocols.k_scheme import n_softsync as n_softsync
from delayjax._src.cluster.protocols.malenia import malenia as malenia
from delayjax._src.cluster.protocols.mindflayer import mindflayer as mindflayer
from delayjax._src.cluster.protocols.ringleader import ringleader as ringleader
from delayjax._src.cluster.protocols.round_robin import round_robin as round_robin
from delayjax._src.cluster.protocols.ssp import psp as psp
from delayjax._src.cluster.protocols.ssp import ssp as ssp
