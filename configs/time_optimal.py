"""Which asynchronous method is fastest when most workers are slow?

Worker i takes sqrt(i) times as long as the first, and there are 8, 32 or 128 of them:
more workers are more gradients a second, but older ones. Logistic regression on breast
cancer data, one example a gradient, the simulated time until the norm of the full
gradient is below a target, each arm at the step size that gets there first. Plain ASGD,
with its steps also capped at P / tau (Mishchenko et al., arXiv:2206.07638), against
Rennala (arXiv:2305.12387), Ringmaster without and with calculation stops
(arXiv:2501.16168), Ringleader (arXiv:2509.22860) and MindFlayer (arXiv:2410.04285).
`:linear` makes worker i take i times as long.

    python -m experiments.main --config=configs/time_optimal.py \
        --workdir=runs/time_optimal
    python -m experiments.main --config=configs/time_optimal.py:linear \
        --workdir=runs/time_optimal_linear
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, configs, figures, tasks
from experiments.results.measures import ratio, seconds_to
from experiments.running.evaluation import gradient_norm

SPEEDS = {"sqrt": np.sqrt, "linear": np.asarray}


def get_config(speeds: str = "sqrt") -> ConfigDict:
    """Seven methods on clusters of three sizes."""
    return ConfigDict(
        dict(
            speeds=speeds,  # worker i = 1, 2, ... takes sqrt(i), or i, times as long
            workers=(8, 32, 128),
            shift_seconds=0.5,  # of a gradient, to which an exponential time is added
            mean_seconds=0.5,  # of that
            seconds=300.0,  # simulated
            target=0.05,  # of the gradient's norm
            batch=8,  # gradients in an update of Rennala
            bound=16,  # staleness that Ringmaster accepts, updates
            allotted_seconds=4.0,  # to a gradient of MindFlayer
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Seven methods for each number of workers."""
    protocols = dj.cluster.protocols
    slower = configs.named("speeds", config.speeds, SPEEDS)
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)

    def server(learning_rate):
        return optax.sgd(learning_rate)

    def arms(workers):
        factors = slower(np.arange(1.0, workers + 1)).tolist()
        cluster = dj.cluster.Cluster(workers, service, slowdown=factors)
        ringleader = protocols.ringleader()

        def capped(learning_rate):
            law = dj.scale_by_staleness(dj.modulation.capped(workers))
            return optax.chain(optax.sgd(learning_rate), law)

        def arm(method, protocol, make=server, **options):
            training = along(Simulation(cluster, protocol), make, **options)
            return dict(method=method, workers=workers), training

        return [
            arm("ASGD", protocols.k_async(1)),
            arm("ASGD capped", protocols.k_async(1), capped),
            arm("Rennala", protocols.rennala(config.batch)),
            arm("Ringmaster", protocols.ringmaster(config.bound)),
            arm("Ringmaster stop", protocols.ringmaster(config.bound, stop=True)),
            arm("Ringleader", ringleader, aggregation=ringleader.aggregation(workers)),
            arm("MindFlayer", protocols.mindflayer(1, config.allotted_seconds)),
        ]

    def until(method, workers):
        own = dict(method=method, workers=workers)
        return seconds_to("gradient_norm", config.target, **own)

    def between(method, workers, low, high):
        text = f"Seconds of {method} on {workers}"
        measure = until(method, workers)
        return Claim(text, measure, at_least=low, at_most=high)

    claims = {
        "sqrt": [
            between("ASGD", 32, 35, 55),
            between("Rennala", 8, 95, 130),
            between("Rennala", 128, 95, 130),
            between("Ringmaster", 128, 45, 65),
        ],
        "linear": [
            between("ASGD", 32, 85, 110),
            between("ASGD", 128, 165, 215),
            between("Ringmaster", 32, 95, 125),
            between("Ringmaster", 128, 95, 125),
            Claim(
                "Rennala, 128 workers over 32",
                ratio(until("Rennala", 128), until("Rennala", 32)),
                about=1.0,
                within=0.1,
            ),
        ],
    }
    target = figures.TimeTo("gradient_norm", config.target)
    return Experiment(
        question="Which asynchronous method is fastest when most workers are slow?",
        task=tasks.breast_cancer(batch_size=1, l2=config.l2),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuned_by=target,
        seconds=config.seconds,
        evaluations=50,
        measure={"gradient_norm": gradient_norm},
        claims=claims.get(config.speeds, []),
        figures=[
            figures.over(
                "workers",
                target,
                color="method",
                fixed=False,
                title=f"How soon is the gradient's norm {config.target}?",
            ),
            figures.curves(
                "gradient_norm",
                against="seconds",
                panels="workers",
                only={"method": ("ASGD", "Rennala", "Ringmaster", "Ringleader")},
            ),
            figures.staleness(),
        ],
        notes=(
            "With its step tuned plain ASGD is among the fastest, and the cap at P /"
            " tau changes nothing. Rennala's time does not depend on how many slow"
            " workers are added, as proved, but a batch of 8 is more than this target"
            " needs; stopping late computations makes Ringmaster as fast as ASGD, at"
            " 128 workers faster. Ringleader waits for everybody, and for the slowest"
            " of 128 too long. Under `:linear` slow workers are slower still: from 32"
            " to 128 of them plain ASGD takes twice as long, 1.6 times capped, while"
            " Rennala and Ringmaster notice nothing."
        ),
    )
