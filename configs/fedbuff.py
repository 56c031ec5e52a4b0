"""Should a federated server update for each client, or for a buffer of them?

A Dirichlet distribution divides the digits among fifty clients. Twenty of them train at
any time, and the time of a training has a heavy tail. FedAsync (Xie et al.,
arXiv:1903.03934) mixes in each client's model when it arrives. FedBuff (Nguyen et al.,
arXiv:2106.06639) collects ten deltas for an update; a control collects one. All weight
by 1 / sqrt(1 + tau), with the same clients; steps of client and server are searched.

    python -m experiments.main --config=configs/fedbuff.py --workdir=runs/fedbuff
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    percent,
)
from experiments.configs import above, at_least, positive
from experiments.tasks import digits_mlp

FEDASYNC, BUFFERED, SINGLE = "FedAsync", "FedBuff", "FedBuff without a buffer"

LIMITS = at_least(0, "target") | positive("seconds", "tolerance")
LIMITS |= above(1, "tail")  # a mean time of 1 s


def get_config() -> ConfigDict:
    """The config: FedAsync, FedBuff, and FedBuff's server without a buffer."""
    return ConfigDict(
        dict(
            clients=50,
            concurrency=20,  # clients that train at any time
            buffer=10,  # deltas per update of FedBuff
            concentration=0.1,  # of the Dirichlet split; small: few classes a client
            tail=2.0,  # P(a training takes longer than t) ~ t^-tail; 1 s on average
            seconds=200.0,  # simulated
            target=0.15,  # the training loss to reach, nats
            batch_size=16,  # examples per training
            client_steps=4,
            seeds=8,
            tolerance=0.1,  # tolerance of the search, as a share of the time
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: three servers with the same clients."""
    times = dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail)  # 1 s on average
    clients = dj.cluster.Cluster(config.clients, times)
    law = dj.modulation.polynomial(0.5)
    weight = dj.scale_by_staleness(law)

    def arm(name, buffer, rates, make, each=None):
        rule = dj.cluster.protocols.fedbuff(buffer, concurrency=config.concurrency)
        local = dict(client=lambda client_rate: optax.sgd(client_rate))
        local["client_steps"] = config.client_steps
        training = along(Simulation(clients, rule), make, each=each, **local)
        labels, grid = {"server": name}, {"server_rate": rates}
        return Arm(training=training, labels=labels, grid=grid)

    mixing = Range(0.1, 1.0, hard=True)  # alpha of FedAsync, at most 1
    rates = Range(0.25, 8.0)  # eta_g of FedBuff

    def step(server_rate):
        return optax.sgd(server_rate)

    def mix(server_rate):
        return dj.fedasync(server_rate, law=law)

    digits = dict(workers=config.clients, concentration=config.concentration)
    shown = dict(color="server", target=config.target)
    target = "train_loss", config.target
    soon = figures.TimeTo(*target)
    return Experiment(
        question="Should a federated server update for each client, or for a buffer?",
        task=digits_mlp(depth=0, batch_size=config.batch_size, **digits),
        arms=[
            arm(FEDASYNC, 1, mixing, mix),
            arm(SINGLE, 1, rates, step, weight),
            arm(BUFFERED, config.buffer, rates, step, weight),
        ],
        grid={"client_rate": Range(0.3, 10.0)},
        seeds=config.seeds,
        tuned_by=soon,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=40,
        answer=[
            Effect(metric=to_target, against={"server": BUFFERED}, size=percent(10))
            for to_target in (soon, figures.TimeTo(*target, along="update"))
        ],
        figures=[
            figures.curves(against="seconds", **shown, title="How soon is it there?"),
            figures.curves(against="update", **shown, title="How many updates?"),
        ],
    )
