"""What must happen under delay: limits, rates, noise floors and run times."""

from delayjax.stability.curvature import hessian_eigenvalues as hessian_eigenvalues
from delayjax.stability.curvature import sharpness as sharpness
from delayjax.stability.delay_equation import DelayEquation as DelayEquation
from delayjax.stability.limits import critical_step as critical_step
from delayjax.stability.limits import step_limit as step_limit
from delayjax.stability.lyapunov import trace_growth as trace_growth
from delayjax.stability.lyapunov import trace_step_limit as trace_step_limit
from delayjax.stability.noise import stationary_variance as stationary_variance
from delayjax.stability.prediction import adam_preconditioner as adam_preconditioner
from delayjax.stability.prediction import learning_rate_limit as learning_rate_limit
from delayjax.stability.prediction import predict_step_limit as predict_step_limit
from delayjax.stability.root_finding import roots as roots
from delayjax.stability.root_finding import spectral_radius as spectral_radius
from delayjax.stability.scaling import OptimalWorkers as OptimalWorkers
from delayjax.stability.scaling import implicit_momentum as implicit_momentum
from delayjax.stability.scaling import optimal_workers as optimal_workers
from delayjax.stability.scaling import workers_decay_rate as workers_decay_rate
from delayjax.stability.sdde import sdde_paths as sdde_paths
from delayjax.stability.sdde import sdde_variance as sdde_variance
from delayjax.stability.trade_off import error_bound as error_bound
