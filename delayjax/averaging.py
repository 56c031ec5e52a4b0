"""Replicas that average their models: an optimizer wrapper for each method."""

from delayjax._src.averaging.adaptive_period import adaptive_period as adaptive_period
from delayjax._src.averaging.delayed_average import blended as blended
from delayjax._src.averaging.delayed_average import corrected as corrected
from delayjax._src.averaging.delayed_average import delayed_average as delayed_average
from delayjax._src.averaging.delayed_average import overwriting as overwriting
from delayjax._src.averaging.dga import dga as dga
from delayjax._src.averaging.downpour import downpour as downpour
from delayjax._src.averaging.eager_outer import eager_outer as eager_outer
from delayjax._src.averaging.easgd import easgd as easgd
from delayjax._src.averaging.easgd import look_ahead as look_ahead
from delayjax._src.averaging.easgd import moving_rate_limit as moving_rate_limit
from delayjax._src.averaging.inner_state import mean_of_state as mean_of_state
from delayjax._src.averaging.inner_state import reset_every as reset_every
from delayjax._src.averaging.local_sgd import local_sgd as local_sgd
from delayjax._src.averaging.neighbors import ad_psgd as ad_psgd
from delayjax._src.averaging.neighbors import d_psgd as d_psgd
from delayjax._src.averaging.neighbors import gossip as gossip
from delayjax._src.averaging.outer import outer as outer
from delayjax._src.averaging.races import races as races
from delayjax._src.averaging.sgp import sgp as sgp
from delayjax._src.averaging.visits import by_rank as by_rank
from delayjax._src.averaging.visits import first_come as first_come
from delayjax._src.averaging.visits import only_on_visit as only_on_visit
from delayjax._src.averaging.wagma import wagma as wagma
