"""Models over the workers' axis: replicas that average, and when."""

from delayjax.averaging.center import ArrivalOrder as ArrivalOrder
from delayjax.averaging.center import first_come as first_come
from delayjax.averaging.center import only_on_visit as only_on_visit
from delayjax.averaging.center import round_robin as round_robin
from delayjax.averaging.delayed_average import Merge as Merge
from delayjax.averaging.delayed_average import blended as blended
from delayjax.averaging.delayed_average import corrected as corrected
from delayjax.averaging.delayed_average import delayed_average as delayed_average
from delayjax.averaging.delayed_average import dga as dga
from delayjax.averaging.delayed_average import overwriting as overwriting
from delayjax.averaging.downpour import downpour as downpour
from delayjax.averaging.easgd import easgd as easgd
from delayjax.averaging.easgd import look_ahead as look_ahead
from delayjax.averaging.easgd import moving_rate_limit as moving_rate_limit
from delayjax.averaging.engine import AveragingState as AveragingState
from delayjax.averaging.gossip import Participates as Participates
from delayjax.averaging.gossip import ad_psgd as ad_psgd
from delayjax.averaging.gossip import d_psgd as d_psgd
from delayjax.averaging.gossip import gossip as gossip
from delayjax.averaging.gossip import sgp as sgp
from delayjax.averaging.local_sgd import adaptive_period as adaptive_period
from delayjax.averaging.local_sgd import local_sgd as local_sgd
from delayjax.averaging.racing import Races as Races
from delayjax.averaging.racing import races as races
from delayjax.averaging.wagma import Lateness as Lateness
from delayjax.averaging.wagma import wagma as wagma
