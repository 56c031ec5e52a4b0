"""Should a federated server update for each client, or for a buffer of them?

Fifty clients have digits of their own, dealt out by a Dirichlet distribution. Twenty of
them train at any time, and the time of a training has a heavy tail. FedAsync (Xie et
al., arXiv:1903.03934) mixes in each client's model when it arrives. FedBuff (Nguyen et
al., arXiv:2106.06639) collects ten deltas for an update; beside it, one. All weight
by 1 / sqrt(1 + tau), with the same clients; steps of client and server are tuned.

    python -m experiments.main --config=configs/fedbuff.py --workdir=runs/fedbuff
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, Simulation, along, figures
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, mean, ratio, seconds_to, tuned
from experiments.results.tables import Found
from experiments.tasks import digits_mlp

FEDASYNC, BUFFERED, SINGLE = "FedAsync", "FedBuff", "FedBuff without a buffer"


LIMITS = at_least(0, "target")
LIMITS |= positive("seconds", "client_rate", "server_rate")


def get_config() -> ConfigDict:
    """FedAsync, FedBuff, and FedBuff's server without a buffer."""
    return ConfigDict(
        dict(
            clients=50,
            concurrency=20,  # clients that train at any time
            buffer=10,  # deltas of an update of FedBuff
            concentration=0.1,  # of the Dirichlet split; small: few classes
            tail=2.0,  # P(a training takes longer than t) ~ t^-tail; 1 s on average
            seconds=200.0,  # simulated
            target=0.15,  # training loss, nats
            client_rate=(0.3, 1.0, 3.0, 10.0),
            mixing=(0.125, 0.25, 0.5, 1.0),  # al of FedAsync
            server_rate=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),  # eta_g of FedBuff
            batch_size=16,  # examples of a training
            client_steps=4,
            seeds=8,
            tuning_seeds=3,  # that choose both steps, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Three servers of the same clients."""
    fastest = 1.0 - 1.0 / config.tail  # seconds, for a mean of one second
    times = dj.cluster.pareto(fastest, config.tail)
    clients = dj.cluster.Cluster(config.clients, times)
    law = dj.modulation.polynomial(0.5)
    weight = dj.scale_by_staleness(law)

    def arm(name, buffer, rates, make, each=None):
        rule = dj.cluster.protocols.fedbuff(buffer, concurrency=config.concurrency)
        local = dict(client=client, client_steps=config.client_steps)
        own = along(Simulation(clients, rule), make, each=each, **local)
        return Arm(training=own, labels={"server": name}, grid={"server_rate": rates})

    def client(client_rate):
        return optax.sgd(client_rate)

    def mix(server_rate):
        return dj.fedasync(server_rate, law=law)

    def step(server_rate):
        return optax.sgd(server_rate)

    digits = dict(workers=config.clients, concentration=config.concentration)
    shown = dict(color="server", target=config.target)
    return Experiment(
        question="Should a federated server update for each client, or for a buffer?",
        task=digits_mlp(depth=0, batch_size=config.batch_size, **digits),
        arms=[
            arm(FEDASYNC, 1, config.mixing, mix),
            arm(SINGLE, 1, config.server_rate, step, weight),
            arm(BUFFERED, config.buffer, config.server_rate, step, weight),
        ],
        grid={"client_rate": config.client_rate},
        seeds=config.seeds,
        tuned=("client_rate", "server_rate"),
        tuning_seeds=config.tuning_seeds,
        tuned_by=figures.TimeTo("train_loss", config.target),
        seconds=config.seconds,
        evaluations=40,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.curves(against="seconds", **shown, title="How soon is it there?"),
            figures.curves(against="update", **shown, title="How many updates?"),
        ],
    )


def until(config: ConfigDict, this: str, other: str) -> Measure:
    """Seconds of a server over another's, until the target."""

    def soon(server):
        return seconds_to("train_loss", config.target, server=server)

    return ratio(soon(this), soon(other))


def ends(this: str, other: str) -> Measure:
    """Training loss at the end over another's, at the steps that end lowest."""

    def measure(found):
        lowest = found._replace(choice=found.choice._replace(by="train_loss"))
        return ratio(*(tuned("train_loss", server=s) for s in (this, other)))(lowest)

    return measure


def published(config: ConfigDict) -> list[Published]:
    """FedBuff against what came before."""
    source = "Nguyen et al. (2022), AISTATS, arXiv:2106.06639, abstract"
    return [
        Published(
            text="FedBuff is sooner at a training loss than FedAsync",
            source=source,
            said="up to 2.5 times more efficient than asynchronous federated learning",
            measure=until(config, FEDASYNC, BUFFERED),
            at_least=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="FedBuff is more efficient than synchronous federated learning",
            source=source,
            said="3.3 times more efficient",
            tried="No server here waits for a round of clients that it drew.",
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """A staleness, times until the target, and losses at the end."""
    stale = mean("staleness_mean", server=BUFFERED)  # theory: (20 - 1) / 10
    buffered, single = (until(config, own, FEDASYNC) for own in (BUFFERED, SINGLE))
    return [
        Record("Mean staleness of FedBuff", stale, 1.882, 0.0043),
        Record("Seconds of FedBuff over FedAsync's", buffered, 0.7542, 0.039),
        Record("Seconds over FedAsync's, no buffer", single, 0.6143, 0.059),
        Record(
            "Loss of FedBuff over FedAsync's", ends(BUFFERED, FEDASYNC), 1.036, 0.13
        ),
        Record("Over that without a buffer", ends(BUFFERED, SINGLE), 1.255, 0.23),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """Times until the target, losses, and updates."""
    buffered = between(until(config, BUFFERED, FEDASYNC), found)
    single = between(until(config, BUFFERED, SINGLE), found)
    loss = between(ends(BUFFERED, SINGLE), found)
    return (
        f"Until a training loss of {config.target:g} FedBuff takes {buffered} of the"
        f" time of FedAsync, and {single} of the time of its own server without a"
        f" buffer; after {config.seconds:g} s its loss is {loss} times that without a"
        f" buffer, with one update of the server for each {config.buffer} clients."
    )
