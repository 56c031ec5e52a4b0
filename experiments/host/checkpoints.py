"""Checkpoints of one program, through Orbax."""

import functools
import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from experiments.host import disk, processes
from experiments.host.progress import log

_METADATA_BYTES = 2**16
_KEPT = 2  # checkpoints: if the newest is broken, the one before it is read


class Checkpoints:
    """Saves and restores a program's state; skips a newest checkpoint that is broken.

    A state is written while the program goes on: `save` returns before the end of the
    writing. Its buffers may then be donated. On a GPU or a TPU Orbax has copied them to
    the host; on a CPU Orbax keeps them, and the next chunk gets new buffers. With
    several processes each writes and reads its part, and all must call every method.
    """

    def __init__(self, directory: epath.PathLike):
        """Takes the folder, which the first call of `save` or `restore` makes.

        Args:
            directory: the folder for the checkpoints of this program only; may be
                gs://.
        """
        self._directory = epath.Path(directory).resolve()
        # not the manager's `restore`, in which the other processes would wait for a
        # process that cannot read its part
        self._state = ocp.StandardCheckpointHandler()

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=_KEPT, create=True, enable_async_checkpointing=True
            ),
            item_names=("state",),
        )

    @property
    def _is_open(self) -> bool:
        return "_manager" in self.__dict__

    def save(self, step: int, state: Any) -> None:
        """Begins to write the state after a step; first waits for the previous state.

        Raises:
            OSError: if the disk is full, or was full when the previous state was
                written; earlier checkpoints are whole.
        """
        self._check_room(state)
        with disk.one_line_if_full(self._directory):
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state)),
            )

    def wait(self) -> None:
        """Waits until all saved states are on the disk.

        Raises:
            OSError: as `save`.
        """
        with disk.one_line_if_full(self._directory):
            if self._is_open:
                self._manager.wait_until_finished()

    def restore(self, like: Any) -> Any:
        """The newest state that can be read, or None.

        Args:
            like: the shapes of the state, with the shardings that it shall get. The
                leaves are those that were saved: a folder of another program is
                refused before.
        """
        self.wait()
        for step in sorted(self._manager.all_steps(), reverse=True):
            path = self._directory / str(step)
            state = failed = None
            try:
                state = self._state.restore(
                    path / "state", args=ocp.args.StandardRestore(like)
                )
            except (jax.errors.JaxRuntimeError, MemoryError):
                raise  # a failure of this machine, not of the checkpoint
            except Exception as error:
                failed = error
            (broken,) = processes.any_of(failed is not None)
            if not broken:
                return state
            self._pass_over(path, failed)
        return None

    def close(self) -> None:
        """Waits, and releases the folder; raises as `wait`."""
        self.wait()
        if self._is_open:
            self._manager.close()

    def remove(self) -> None:
        """Removes the checkpoints after `close`, when no process reads them."""
        if self._is_open:
            processes.wait(f"no process reads {self._directory.name} any more")
            if processes.is_first():
                self._directory.rmtree()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Closes, unless JAX failed: closing could wait for a process that is gone."""
        if kind is None or not issubclass(kind, jax.errors.JaxRuntimeError):
            self.close()

    def _check_room(self, state: Any) -> None:
        """Checks for room before writing: an error while writing is many lines long."""
        if "://" in str(self._directory):
            return
        needed = sum(
            part.data.nbytes
            for leaf in jax.tree.leaves(state)
            for part in leaf.addressable_shards
            if part.replica_id == 0  # only these are written
        )
        free = shutil.disk_usage(self._manager.directory).free
        is_full = free < needed + _METADATA_BYTES
        # all processes raise: else the others would wait in Orbax
        if any(processes.any_of(is_full)):
            raise disk.full_error(self._directory)

    def _pass_over(self, path: epath.Path, error: Exception | None) -> None:
        """Reports a checkpoint that cannot be read and sets it aside."""
        reason = "another process cannot read its part"
        if error is not None:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:80]} ..."
        log.warning(
            f"The checkpoint of step {path.name} in {self._directory} cannot be read"
            f" ({reason}). It is set aside, and the one before it is used."
        )
        aside = self._directory.parent / f"{self._directory.name}-broken-{path.name}"
        if processes.is_first():
            if aside.exists():
                aside.rmtree()
            path.rename(aside)
        processes.wait(f"{aside.name} is set aside")
        self._manager.reload()
