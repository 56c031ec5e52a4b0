"""`python -m experiments.advise`; see `command`."""

from experiments.advise.command import command_line

if __name__ == "__main__":
    command_line()
