"""The tasks by name, and the parts from which a user builds another task."""

from experiments.tasks.breast_cancer import breast_cancer as breast_cancer
from experiments.tasks.char_lm import char_lm as char_lm
from experiments.tasks.classification import classify as classify
from experiments.tasks.digits import digits_cnn as digits_cnn
from experiments.tasks.digits import digits_mlp as digits_mlp
from experiments.tasks.images import images as images
from experiments.tasks.language import predict_next as predict_next
from experiments.tasks.mixtures import gaussian_mixtures as gaussian_mixtures
from experiments.tasks.networks import Network as Network
from experiments.tasks.networks import linen as linen
from experiments.tasks.networks import nnx as nnx
from experiments.tasks.quadratic import quadratic as quadratic
from experiments.tasks.task import Task as Task
from experiments.tasks.temporal_difference import linear_td as linear_td
from experiments.tasks.tokens import tokens as tokens
