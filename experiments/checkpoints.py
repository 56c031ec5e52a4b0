"""Checkpoints of one program, through Orbax."""

from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from experiments import execution, processes
from experiments.progress import log


class OtherRunError(ValueError):
    """A checkpoint that this config cannot go on from."""


class Checkpoints:
    """Saves and restores a program's state; a broken newest one is passed over.

    Saving waits for the disk: the state's buffers are donated to the next chunk. In
    several processes each writes and reads its own part, and all call every method.
    """

    def __init__(self, directory: epath.PathLike, *, max_delay: int, kept: int):
        """Opens the folder, creating it.

        Args:
            directory: of this program's checkpoints alone; gs:// too.
            max_delay: depth of the history, in updates; a checkpoint of another depth
                is refused.
            kept: how many of the newest are kept.
        """
        self._directory = epath.Path(directory).resolve()
        self._max_delay = max_delay
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=kept, create=True, enable_async_checkpointing=False
            ),
            item_names=("state", "facts"),
        )
        # The manager's own reading has barriers inside, at which the others would stand
        # where one process alone cannot read its part.
        self._state = ocp.StandardCheckpointHandler()
        self._facts = ocp.JsonCheckpointHandler()

    def save(self, state: Any) -> None:
        """Writes a state under its own step."""
        self._manager.save(
            int(execution.held(state).step),
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                facts=ocp.args.JsonSave({"max_delay": self._max_delay}),
            ),
        )
        self._manager.wait_until_finished()

    def restore(self, like: Any) -> Any:
        """The newest state that can be read, or None.

        Args:
            like: its shapes, with the shardings that it is to have.

        Raises:
            OtherRunError: if it was made with another `max_delay`, or its leaves are
                others than those of `like`. Nothing is moved then.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            path = self._directory / str(step)
            state = failed = None
            try:
                self._check(path, like)
                state = self._state.restore(
                    path / "state", args=ocp.args.StandardRestore(like)
                )
            except OtherRunError:
                raise
            except Exception as error:
                failed = error
            if not processes.any_of(failed is not None):
                return state
            self._pass_over(path, failed)
        return None

    def close(self) -> None:
        """Releases the folder."""
        self._manager.close()

    def _check(self, path: epath.Path, like: Any) -> None:
        """Refuses a checkpoint whose leaves are not those of `like`."""
        facts = self._facts.restore(path / "facts", args=ocp.args.JsonRestore())
        found = facts["max_delay"]
        if found != self._max_delay:
            raise OtherRunError(
                f"The checkpoint in {self._directory} has max_delay {found}, the"
                f" config {self._max_delay}: set config.delay.max_delay={found} or"
                " choose another --workdir."
            )
        there = _leaves(self._state.metadata(path / "state").tree)
        here = _leaves(ocp.tree.serialize_tree(like, keep_empty_nodes=True))
        differing = [
            f"{name} is {there.get(name, 'absent')} there, {here.get(name, 'absent')}"
            " now"
            for name in (*here, *(name for name in there if name not in here))
            if there.get(name) != here.get(name)
        ]
        if differing:
            shown, more = differing[:3], len(differing) - 3
            raise OtherRunError(
                f"The checkpoint {path} is of another state:"
                f" {'; '.join(shown)}{f'; and {more} more' * (more > 0)}. The config,"
                " the data, a flag of JAX or the code have changed since (config.json"
                " says what ran): run it as it was, or choose another --workdir."
            )

    def _pass_over(self, path: epath.Path, error: Exception | None) -> None:
        """Reports a checkpoint that cannot be read and sets it aside."""
        reason = "another process cannot read its part"
        if error is not None:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:80]} ..."
        log.warning(
            "The checkpoint of step %s in %s cannot be read (%s). It is set aside, and"
            " the one before it is used.",
            *(path.name, self._directory, reason),
        )
        aside = self._directory.parent / f"{self._directory.name}-broken-{path.name}"
        if processes.is_first():
            if aside.exists():
                aside.rmtree()
            path.rename(aside)
        processes.wait(f"{aside.name} is set aside")
        self._manager.reload()


def _leaves(tree: Any) -> dict[str, str]:
    """Name, dtype and shape of every leaf, as in params.w: float32[2, 3]."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (
            f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
