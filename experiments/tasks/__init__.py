"""What is trained: tasks as functions."""

from experiments.tasks.digits import digits_cnn as digits_cnn
from experiments.tasks.digits import digits_mlp as digits_mlp
from experiments.tasks.quadratic import quadratic as quadratic
from experiments.tasks.task import Task as Task
