"""serl: sample-efficient reinforcement learning on real robots, over ROS 2.

The public Python interface is loaded when it is used; see `serl.api`.
"""

from typing import TYPE_CHECKING, Any

from serl.version import __version__ as __version__

if TYPE_CHECKING:
    from serl.api import Task as Task
    from serl.api import load_policy as load_policy
    from serl.api import make_env as make_env
    from serl.api import open_run as open_run
    from serl.api import train as train

_PUBLIC = ("Task", "load_policy", "make_env", "open_run", "train")


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from serl import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
