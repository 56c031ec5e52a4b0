"""What must happen under delay: limits, rates, noise floors and run times."""

from delayjax.stability.curvature import hessian_eigenvalues as hessian_eigenvalues
from delayjax.stability.curvature import sharpness as sharpness
from delayjax.stability.delay_equation import DelayEquation as DelayEquation
from delayjax.stability.dynamics import Dynamics as Dynamics
from delayjax.stability.prediction import adam_preconditioner as adam_preconditioner
from delayjax.stability.prediction import learning_rate_limit as learning_rate_limit
from delayjax.stability.prediction import predict_step_limit as predict_step_limit
from delayjax.stability.scaling import OptimalWorkers as OptimalWorkers
from delayjax.stability.scaling import implicit_momentum as implicit_momentum
from delayjax.stability.scaling import optimal_workers as optimal_workers
from delayjax.stability.scaling import workers_decay_rate as workers_decay_rate
from delayjax.stability.sdde import sdde_paths as sdde_paths
from delayjax.stability.sdde import sdde_variance as sdde_variance
from delayjax.stability.trace_dynamics import TraceDynamics as TraceDynamics
from delayjax.stability.trace_dynamics import TraceLimit as TraceLimit
from delayjax.stability.trade_off import error_bound as error_bound
