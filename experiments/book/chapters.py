"""The configs of the book in their order, and the system that each is about."""

CHAPTERS: dict[str, dict[str, str]] = {
    "Delay and step size": {
        "default": "Adam with late gradients",
        "constant_delay": "A constant delay and the train/test gap",
        "stability_edge": "The edge of stability: logistic regression",
        "stability_edge:quadratic": "The edge of stability: a quadratic",
        "stability_edge:digits_mlp": "The edge of stability: a network",
        "pipeline_edge": "The edge of stability: pipelines",
        "delay_laws": "Laws of delay with one mean",
        "noise_floor": "Gradient noise and delay",
        "workers": "The number of asynchronous workers: one curvature",
        "workers:spectrum": "The number of asynchronous workers: a spectrum",
        "survival": "How many workers a network survives",
        "char_lm": "Optimizers on a language model",
        "muon_delay": "Late updates and three sizes of a model",
        "one_late": "One late update of a language model",
        "late_or_mixed": "Simulations of a pipeline",
        "pipeline_char_lm": "Late stages of a pipeline, and cures",
    },
    "Rules for stale gradients": {
        "modulation": "Staleness laws",
        "compensation": "DC-ASGD",
        "late_updates": "Error feedback on updates",
        "guided": "Guided asynchronous SGD",
        "total_momentum": "YellowFin's closed loop",
        "dana": "DANA",
        "ordered_momentum": "OrMo",
        "dasa": "DASA",
        "dasgd": "DASGD",
        "kardam": "Kardam",
        "error_feedback": "Error feedback for compressed gradients",
        "rules": "Rules on equal terms",
    },
    "Protocols of a server": {
        "softsync": "n-softsync",
        "tradeoff": "n-softsync against hardsync",
        "k_async": "K-sync and K-async: memoryless times",
        "k_async:shifted": "K-sync and K-async: shifted times",
        "k_async:pareto": "K-sync and K-async: heavy tails",
        "adasync": "AdaSync",
        "grouping": "Groups with a server",
        "barriers": "BSP, SSP and ASP",
        "barriers:PSP": "PSP",
        "barrier_steps": "PSP on 200 workers",
        "time_optimal": "Rennala and Ringmaster: times as sqrt(i)",
        "time_optimal:linear": "Rennala and Ringmaster: times as i",
        "ringmaster_lmo": "Ringmaster LMO",
        "gradient_coding": "Gradient coding",
        "hanging_workers": "MindFlayer",
        "hogwild": "Hogwild!",
        "fedbuff": "FedAsync and FedBuff",
        "heterogeneous_data": "Fast workers and their data",
        "sequence_lengths": "Sequences of many lengths",
        "sync_or_async": "Synchronous or asynchronous",
        "real_trace": "A log of a cluster",
    },
    "Replicas that average": {
        "easgd_variants": "EASGD and its variants",
        "local_sgd": "Local SGD and DaSGD",
        "diloco": "DiLoCo",
        "outer_overlap": "Outer steps that come late",
        "link_utilization": "Islands over a slow link",
        "async_islands": "Delayed Nesterov: the toy",
        "async_islands:characters": "Delayed Nesterov: characters",
        "bytes_to_target": "Rare and small messages",
        "adaptive_period": "An adaptive period",
        "gossip": "Gossip",
        "wagma": "WAGMA-SGD",
        "two_levels": "Asynchrony on two levels",
        "a2sgd": "A2SGD",
    },
    "For a pod": {
        "imagenet": "ResNet-50 on ImageNet",
        "tokens_pod": "A language model of 124M parameters",
        "pipeline_tokens": "32 late stages of a language model",
    },
}

NOT_RUN = {
    "rules": "a page of its own reports it",
    "imagenet": "it needs a pod and ImageNet",
    "tokens_pod": "it needs a pod and a file of tokens",
    "pipeline_tokens": "it needs a file of tokens",
}
"""{config that the command does not run: the reason}."""

COUNTED_WITH = {
    "workers:spectrum": "workers",
    "survival": "workers",
    "char_lm": "one_late",
    "late_updates": "one_late",
    "modulation": "softsync",
    "tradeoff": "softsync",
    "k_async": "k_async:shifted",
    "k_async:pareto": "k_async:shifted",
    "barrier_steps": "barriers:PSP",
    "time_optimal": "time_optimal:linear",
    "sequence_lengths": "wagma",
    "async_islands:characters": "async_islands",
    "outer_overlap": "bytes_to_target",
    "easgd_variants": "sync_or_async",
}
"""{config: another config, whose headline is the claim of the same abstract}.

Such a config has no headline, so that each abstract counts once. `k_async` has three
laws of times. The shifted law decides, because it favors the claim least: in theory the
slowest of eight workers takes 1.9 times the mean time under it, and 2.5 and 2.7 times
under the others, so that an update that does not wait saves least under it.
"""

SYSTEMS = {
    name: about for chapter in CHAPTERS.values() for name, about in chapter.items()
}
"""{config, with its form: the system that it is about}."""
