"""Models over the workers' axis: replicas that average, and when."""

from delayjax.averaging.centre import Turn as Turn
from delayjax.averaging.centre import WhenThereState as WhenThereState
from delayjax.averaging.centre import first_come as first_come
from delayjax.averaging.centre import round_robin as round_robin
from delayjax.averaging.centre import rounds as rounds
from delayjax.averaging.centre import when_there as when_there
from delayjax.averaging.delayed_average import (
    DelayedAverageState as DelayedAverageState,
)
from delayjax.averaging.delayed_average import DgaState as DgaState
from delayjax.averaging.delayed_average import Merge as Merge
from delayjax.averaging.delayed_average import blended as blended
from delayjax.averaging.delayed_average import corrected as corrected
from delayjax.averaging.delayed_average import delayed_average as delayed_average
from delayjax.averaging.delayed_average import dga as dga
from delayjax.averaging.delayed_average import overwriting as overwriting
from delayjax.averaging.downpour import DownpourState as DownpourState
from delayjax.averaging.downpour import downpour as downpour
from delayjax.averaging.easgd import EasgdState as EasgdState
from delayjax.averaging.easgd import easgd as easgd
from delayjax.averaging.easgd import look_ahead as look_ahead
from delayjax.averaging.easgd import moving_rate_limit as moving_rate_limit
from delayjax.averaging.gossip import GossipState as GossipState
from delayjax.averaging.gossip import Sends as Sends
from delayjax.averaging.gossip import SgpState as SgpState
from delayjax.averaging.gossip import ad_psgd as ad_psgd
from delayjax.averaging.gossip import d_psgd as d_psgd
from delayjax.averaging.gossip import gossip as gossip
from delayjax.averaging.gossip import sgp as sgp
from delayjax.averaging.local_sgd import AdaptivePeriodState as AdaptivePeriodState
from delayjax.averaging.local_sgd import LocalSgdState as LocalSgdState
from delayjax.averaging.local_sgd import adaptive_period as adaptive_period
from delayjax.averaging.local_sgd import local_sgd as local_sgd
from delayjax.averaging.wagma import Lateness as Lateness
from delayjax.averaging.wagma import WagmaState as WagmaState
from delayjax.averaging.wagma import late_by as late_by
from delayjax.averaging.wagma import wagma as wagma
from delayjax.averaging.waiting import WaitAvoiding as WaitAvoiding
from delayjax.averaging.waiting import Waits as Waits
from delayjax.averaging.waiting import all_reduce_seconds as all_reduce_seconds
from delayjax.averaging.waiting import alone as alone
from delayjax.averaging.waiting import everyone as everyone
from delayjax.averaging.waiting import finish_times as finish_times
from delayjax.averaging.waiting import group_seconds as group_seconds
from delayjax.averaging.waiting import neighbours as neighbours
from delayjax.averaging.waiting import nobody as nobody
from delayjax.averaging.waiting import wait_avoiding as wait_avoiding
from delayjax.averaging.wild import Races as Races
from delayjax.averaging.wild import races as races
