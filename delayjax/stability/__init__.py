"""What must happen under delay: limits, rates, noise floors and run times."""

from delayjax.stability import service_times as service_times
from delayjax.stability.continuous import characteristic_roots as characteristic_roots
from delayjax.stability.continuous import decay_rate as decay_rate
from delayjax.stability.continuous import speedup_limit as speedup_limit
from delayjax.stability.curvature import hessian_eigenvalues as hessian_eigenvalues
from delayjax.stability.curvature import sharpness as sharpness
from delayjax.stability.dampings import critical_damping as critical_damping
from delayjax.stability.dampings import damping_limit as damping_limit
from delayjax.stability.delay_laws import DelayLaw as DelayLaw
from delayjax.stability.delay_laws import constant_delay as constant_delay
from delayjax.stability.delay_laws import empirical_delay as empirical_delay
from delayjax.stability.delay_laws import exponential_delay as exponential_delay
from delayjax.stability.delay_laws import gamma_delay as gamma_delay
from delayjax.stability.delay_laws import half_update_earlier as half_update_earlier
from delayjax.stability.delay_laws import (
    shifted_exponential_delay as shifted_exponential_delay,
)
from delayjax.stability.delay_laws import uniform_delay as uniform_delay
from delayjax.stability.dynamics import Dynamics as Dynamics
from delayjax.stability.first_passage import arrival_rate as arrival_rate
from delayjax.stability.first_passage import run_time as run_time
from delayjax.stability.prediction import adam_preconditioner as adam_preconditioner
from delayjax.stability.prediction import learning_rate_limit as learning_rate_limit
from delayjax.stability.prediction import predict_step_limit as predict_step_limit
from delayjax.stability.scaling import OptimalWorkers as OptimalWorkers
from delayjax.stability.scaling import implicit_momentum as implicit_momentum
from delayjax.stability.scaling import optimal_workers as optimal_workers
from delayjax.stability.scaling import workers_decay_rate as workers_decay_rate
from delayjax.stability.sdde import sdde_paths as sdde_paths
from delayjax.stability.sdde import sdde_variance as sdde_variance
from delayjax.stability.thinning import Thinned as Thinned
from delayjax.stability.thinning import event_triggered as event_triggered
from delayjax.stability.thinning import staleness_threshold as staleness_threshold
from delayjax.stability.trace_dynamics import TraceDynamics as TraceDynamics
from delayjax.stability.trace_dynamics import TraceLimit as TraceLimit
from delayjax.stability.trade_off import error_bound as error_bound
from delayjax.stability.update_times import k_async_seconds as k_async_seconds
from delayjax.stability.update_times import (
    k_batch_async_seconds as k_batch_async_seconds,
)
from delayjax.stability.update_times import (
    k_batch_sync_seconds as k_batch_sync_seconds,
)
from delayjax.stability.update_times import k_sync_seconds as k_sync_seconds
