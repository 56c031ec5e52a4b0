"""Does Kardam save asynchronous training from workers that lie?

Three of ten workers lie: they send -10 times their gradient (sign flip), or noise.
Plain asynchronous SGD uses all gradients; clipping bounds each gradient; Kardam
(Damaskinos et al., arXiv:1802.07928) refuses gradients that change too fast (the
Lipschitz filter) or come from one worker too often (the frequency filter), and may damp
late gradients by exp(-0.2 tau). The task is softmax regression on digits, with step and
damping tuned for each attack.

    python -m experiments.main --config=configs/kardam.py --workdir=runs/kardam
"""

import functools

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Simulation, along, figures
from experiments.configs import at_least, positive
from experiments.results.sizes import points
from experiments.tasks import digits_mlp

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "noise", "target")
LIMITS |= positive("learning_rate")


ALONE = "Lipschitz filter alone"


def get_config() -> ConfigDict:
    """The config: two attacks and none, against four servers."""
    return ConfigDict(
        dict(
            workers=10,
            attackers=(2, 5, 8),  # numbers of the workers that lie
            factor=-10.0,  # of a sign flip
            noise=3.0,  # standard deviation of a noise attack in each coordinate
            clip=1.0,  # the largest norm of a clipped gradient
            damping=(0.0, 0.2),  # alpha of Kardam's exp(-alpha tau); 0 for none
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            batch_size=32,  # examples per gradient
            updates=3000,  # gradients that arrive, also refused ones
            target=0.2,  # the training loss to reach, nats
            seeds=16,
            tuning_seeds=6,  # seeds that choose step and damping; not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each server, law of times and attack."""
    workers, liars = config.workers, list(config.attackers)
    if len(set(liars)) < len(liars) or not set(liars) < set(range(workers)):
        raise ValueError(
            f"config.attackers must hold some of 0 to {workers - 1}, each once."
        )
    clip = optax.clip_by_global_norm(config.clip)
    attacks = {
        "none": lambda key: optax.identity(),
        "sign flip": lambda key: optax.scale(config.factor),
        "noise": lambda key: optax.add_noise(config.noise**2, 0.0, key),
    }

    def lies(attack, key):
        return dj.attack(attacks[attack](key), attackers=liars)

    def clipped(learning_rate):
        return optax.chain(clip, optax.sgd(learning_rate))

    def kardam(learning_rate, damping, *, frequency=True):
        law = dj.scale_by_staleness(dj.modulation.exponential(damping))
        tx = optax.chain(optax.sgd(learning_rate), law)
        return dj.kardam(tx, workers=workers, attackers=len(liars), frequency=frequency)

    laws = dict(equal=dj.cluster.constant(1.0), memoryless=dj.cluster.exponential(1.0))
    servers = {"plain": optax.sgd, "clipped": clipped, "Kardam": kardam}
    servers[ALONE] = functools.partial(kardam, frequency=False)

    def arm(times, law, server):
        simulated = Simulation(
            dj.cluster.Cluster(workers, law), dj.cluster.protocols.k_async(1)
        )
        training = along(simulated, servers[server], each=lies)
        grid = {} if server in ("plain", "clipped") else {"damping": config.damping}
        return Arm(
            training=training, labels=dict(times=times, server=server), grid=grid
        )

    def error(of, against, **where):
        return Effect(
            metric="test_error",
            against=against,
            size=points(1),
            where=where,
            name=f"test error{of}",
        )

    both, lying = ("clipped", "Kardam"), ("sign flip", "noise")
    shown = dict(panels="times", color="server", fixed=False)
    damped = "Kardam", ALONE, "clipped"
    flip = dict(only={"attack": ("sign flip",), "server": damped})
    flip["title"] = "Does damping help Kardam against a sign flip?"
    return Experiment(
        question="Does Kardam save asynchronous training from workers that lie?",
        task=digits_mlp(depth=0, batch_size=config.batch_size),
        arms=[arm(*law, server) for law in laws.items() for server in servers],
        grid={"learning_rate": config.learning_rate, "attack": tuple(attacks)},
        seeds=config.seeds,
        tuned=("learning_rate", "damping"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=60,
        answer=[
            error("", {"attack": "none"}, server=("plain", "Kardam")),
            error(" of Kardam", {"server": "clipped"}, server=both, attack=lying),
        ],
        figures=[
            figures.over("attack", **shown, title="Who learns under an attack?"),
            figures.over("damping", **shown, **flip),
            figures.over("attack", "dropped", **shown, title="What is refused?"),
            figures.curves(
                "train_loss",
                against="update",
                panels="times",
                target=config.target,
                only={"attack": ("none",)},
                title="What does refusing cost where nobody lies?",
            ),
        ],
    )
