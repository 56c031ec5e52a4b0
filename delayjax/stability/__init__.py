"""What must happen: stability limits, decay rates and noise floors under delay."""

from delayjax.stability.limits import critical_step as critical_step
from delayjax.stability.limits import step_limit as step_limit
from delayjax.stability.noise import stationary_variance as stationary_variance
from delayjax.stability.roots import roots as roots
from delayjax.stability.roots import spectral_radius as spectral_radius
