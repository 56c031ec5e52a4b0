"""Limits, rates and variances that theory predicts under delay."""

from delayjax._src.stability.curvature import hessian_eigenvalues as hessian_eigenvalues
from delayjax._src.stability.curvature import sharpness as sharpness
from delayjax._src.stability.delay_equation import DelayEquation as DelayEquation
from delayjax._src.stability.dynamics import Dynamics as Dynamics
from delayjax._src.stability.prediction import (
    adam_preconditioner as adam_preconditioner,
)
from delayjax._src.stability.prediction import (
    learning_rate_limit as learning_rate_limit,
)
from delayjax._src.stability.prediction import predict_step_limit as predict_step_limit
from delayjax._src.stability.scaling import explicit_momentum as explicit_momentum
from delayjax._src.stability.scaling import optimal_workers as optimal_workers
from delayjax._src.stability.scaling import workers_decay_rate as workers_decay_rate
from delayjax._src.stability.stages import pipeline_step_limit as pipeline_step_limit
from delayjax._src.stability.trace_dynamics import TraceDynamics as TraceDynamics
from delayjax._src.stability.trade_off import error_bound as error_bound
