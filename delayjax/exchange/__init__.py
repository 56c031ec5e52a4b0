"""Gradients over the workers' axis: what the workers agree on, and when."""

from delayjax.exchange.a2sgd import a2sgd as a2sgd
from delayjax.exchange.error_feedback import Compressor as Compressor
from delayjax.exchange.error_feedback import ErrorFeedbackState as ErrorFeedbackState
from delayjax.exchange.error_feedback import detached as detached
from delayjax.exchange.error_feedback import error_feedback as error_feedback
from delayjax.exchange.late import late_reduce as late_reduce
from delayjax.exchange.mean import mean as mean
from delayjax.exchange.outbox import OutboxState as OutboxState
from delayjax.exchange.overlapped import overlapped_mean as overlapped_mean
from delayjax.exchange.partial import Carried as Carried
from delayjax.exchange.partial import PartialMeanState as PartialMeanState
from delayjax.exchange.partial import Participation as Participation
from delayjax.exchange.partial import majority as majority
from delayjax.exchange.partial import partial_mean as partial_mean
from delayjax.exchange.partial import solo as solo
from delayjax.exchange.random_blocks import random_blocks as random_blocks
