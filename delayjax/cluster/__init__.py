"""Clusters in time: who finishes when, and which version each gradient saw."""

from delayjax.cluster import protocols as protocols
from delayjax.cluster.cluster import Cluster as Cluster
from delayjax.cluster.cluster import Communication as Communication
from delayjax.cluster.cluster import Slowdown as Slowdown
from delayjax.cluster.logs import load_trace as load_trace
from delayjax.cluster.server import Arrival as Arrival
from delayjax.cluster.server import Server as Server
from delayjax.cluster.server import simulate as simulate
from delayjax.cluster.services import by_batch as by_batch
from delayjax.cluster.services import constant as constant
from delayjax.cluster.services import empirical as empirical
from delayjax.cluster.services import exponential as exponential
from delayjax.cluster.services import gamma as gamma
from delayjax.cluster.services import independent as independent
from delayjax.cluster.services import infinite_bernoulli as infinite_bernoulli
from delayjax.cluster.services import lognormal as lognormal
from delayjax.cluster.services import markov_stragglers as markov_stragglers
from delayjax.cluster.services import pareto as pareto
from delayjax.cluster.services import shifted_exponential as shifted_exponential
from delayjax.cluster.services import sleepers as sleepers
from delayjax.cluster.staleness import staleness_law as staleness_law
from delayjax.cluster.trace import Arrivals as Arrivals
from delayjax.cluster.trace import Dropped as Dropped
from delayjax.cluster.trace import StalenessLaw as StalenessLaw
from delayjax.cluster.trace import Summary as Summary
from delayjax.cluster.trace import Trace as Trace
