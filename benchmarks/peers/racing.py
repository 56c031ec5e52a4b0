"""PyTorch's Hogwild: processes that train one model in shared memory, without locks.

It is an example of PyTorch, with data and initial parameters from `benchmarks.peers`.
Its processes import neither JAX nor delayjax.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Raced(NamedTuple):
    """A model that processes have trained."""

    params: Any  # the trained parameters, in the given structure
    seconds: float  # from the moment when all processes are ready


_SECONDS = 60.0  # the time that a process may take until it is ready


def train(
    params: Mapping[str, Any], batches: Mapping[str, Any], rate: float, processes: int
) -> Raced:
    """Trains an MLP of two layers.

    Args:
        params: {layer: {"kernel", "bias"}}, in the order of the layers.
        batches: images and labels, each leaf [gradients, examples, ...]; process i of P
            takes every P-th batch, from number i on.
        rate: the step size of SGD.
        processes: the number of processes, P.
    """
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    layers = [params[name] for name in params]
    model = _model(layers)
    model.share_memory()
    images = torch.tensor(np.array(batches["image"]))
    labels = torch.tensor(np.array(batches["label"]).astype(np.int64))
    # a process that fails before the barriers breaks both, so that none waits for ever
    ready, go = (context.Barrier(processes + 1, timeout=_SECONDS) for _ in range(2))
    children = [
        context.Process(
            target=_work, args=(model, images, labels, rate, i, processes, ready, go)
        )
        for i in range(processes)
    ]
    for child in children:
        child.start()
    ready.wait()
    started = time.perf_counter()
    go.wait()
    for child in children:
        child.join()
        if child.exitcode:
            raise RuntimeError(f"a process of PyTorch ended with {child.exitcode}")
    seconds = time.perf_counter() - started
    trained = iter([p.detach().numpy() for p in model.parameters()])
    new = {
        name: {"kernel": next(trained).T.copy(), "bias": next(trained).copy()}
        for name in params
    }
    return Raced(new, seconds)


def _model(layers):
    import torch

    modules = []
    for layer in layers:
        kernel, bias = np.array(layer["kernel"]), np.array(layer["bias"])
        linear = torch.nn.Linear(*kernel.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(kernel.T.copy()))
            linear.bias.copy_(torch.tensor(bias))
        modules += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(torch.nn.Flatten(), *modules[:-1])


def _work(model, images, labels, rate, number, processes, ready, go):
    import torch

    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    ready.wait()
    go.wait()
    for i in range(number, len(images), processes):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[i]), labels[i]).backward()
        optimizer.step()
