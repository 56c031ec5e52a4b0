"""Clusters in time: when workers finish, and the version that each gradient read."""

from delayjax._src.advice.advice import Advice as Advice
from delayjax._src.advice.advice import Choice as Choice
from delayjax._src.advice.advise import advise as advise
from delayjax._src.advice.islands import Islands as Islands
from delayjax._src.cluster.cluster import Cluster as Cluster
from delayjax._src.cluster.cluster import Communication as Communication
from delayjax._src.cluster.cluster import Slowdown as Slowdown
from delayjax._src.cluster.finish_times import finish_times as finish_times
from delayjax._src.cluster.finish_times import waits_for_all as waits_for_all
from delayjax._src.cluster.finish_times import (
    waits_for_neighbors as waits_for_neighbors,
)
from delayjax._src.cluster.rates import arrival_rate as arrival_rate
from delayjax._src.cluster.rates import run_time as run_time
from delayjax._src.cluster.server import Server as Server
from delayjax._src.cluster.service_time import ServiceTime as ServiceTime
from delayjax._src.cluster.service_time import constant as constant
from delayjax._src.cluster.service_time import empirical as empirical
from delayjax._src.cluster.service_time import exponential as exponential
from delayjax._src.cluster.service_time import from_scipy as from_scipy
from delayjax._src.cluster.service_time import gamma as gamma
from delayjax._src.cluster.service_time import lognormal as lognormal
from delayjax._src.cluster.service_time import pareto as pareto
from delayjax._src.cluster.service_time import (
    shifted_exponential as shifted_exponential,
)
from delayjax._src.cluster.service_time import uniform as uniform
from delayjax._src.cluster.services import by_batch as by_batch
from delayjax._src.cluster.services import independent as independent
from delayjax._src.cluster.services import infinite_bernoulli as infinite_bernoulli
from delayjax._src.cluster.services import markov_stragglers as markov_stragglers
from delayjax._src.cluster.services import sleepers as sleepers
from delayjax._src.cluster.simulate import simulate as simulate
from delayjax._src.cluster.staleness import StalenessLaw as StalenessLaw
from delayjax._src.cluster.staleness_law import staleness_law as staleness_law
from delayjax._src.cluster.trace import Trace as Trace
from delayjax._src.cluster.visits_to_rounds import visits_to_rounds as visits_to_rounds
from delayjax._src.cluster.wait_avoiding import wait_avoiding as wait_avoiding
from delayjax._src.logs.fits import fit as fit
from delayjax._src.logs.load_recorded import load_recorded as load_recorded
from delayjax._src.logs.load_trace import load_trace as load_trace
from delayjax._src.logs.recorded import Recorded as Recorded
from delayjax.cluster import protocols as protocols
