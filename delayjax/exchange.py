"""Averages of the workers' gradients, at once or late."""

from delayjax._src.exchange.a2sgd import a2sgd as a2sgd
from delayjax._src.exchange.between_groups import (
    late_between_groups as late_between_groups,
)
from delayjax._src.exchange.compressors import quantized as quantized
from delayjax._src.exchange.compressors import random_blocks as random_blocks
from delayjax._src.exchange.error_feedback import detached as detached
from delayjax._src.exchange.error_feedback import error_feedback as error_feedback
from delayjax._src.exchange.late import late_reduce as late_reduce
from delayjax._src.exchange.mean import mean as mean
from delayjax._src.exchange.overlap_options import overlap_options as overlap_options
from delayjax._src.exchange.overlapped import overlapped_mean as overlapped_mean
from delayjax._src.exchange.partial_mean import majority as majority
from delayjax._src.exchange.partial_mean import partial_mean as partial_mean
from delayjax._src.exchange.partial_mean import solo as solo
