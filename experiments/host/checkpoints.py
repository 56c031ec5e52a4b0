"""Checkpoints of one program, through Orbax."""

from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from experiments.host import processes
from experiments.host.progress import log


class OtherRunError(ValueError):
    """A checkpoint that this config cannot go on from."""


class Checkpoints:
    """Saves and restores a program's state; a broken newest one is passed over.

    Saving waits for the disk: the state's buffers are donated to the next chunk. In
    several processes each writes and reads its own part, and all call every method.
    """

    def __init__(
        self, directory: epath.PathLike, *, kept: int, held: Callable[[Any], Any]
    ):
        """Opens the folder, creating it.

        Args:
            directory: of this program's checkpoints alone; gs:// too.
            kept: how many of the newest are kept.
            held: a state -> what has its `step`, the number of updates done.
        """
        self._directory = epath.Path(directory).resolve()
        self._held = held
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=kept, create=True, enable_async_checkpointing=False
            ),
            item_names=("state",),
        )
        # The manager's own reading has barriers inside, at which the others would stand
        # where one process alone cannot read its part.
        self._state = ocp.StandardCheckpointHandler()

    def save(self, state: Any) -> None:
        """Writes a state under its own step."""
        self._manager.save(
            int(self._held(state).step),
            args=ocp.args.Composite(state=ocp.args.StandardSave(state)),
        )
        self._manager.wait_until_finished()

    def restore(self, like: Any) -> Any:
        """The newest state that can be read, or None.

        Args:
            like: its shapes, with the shardings that it is to have.

        Raises:
            OtherRunError: if its leaves are not the leaves of `like`. Nothing is moved
                then.
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
