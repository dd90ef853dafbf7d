"""Others who command an arm: beside its guard, by setpoints, or beside its actor, by targets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from serl.ros.node import RosNode

_UNKNOWN = "_NODE_NAME_UNKNOWN_"  # of rmw: its publisher was discovered before its node
_LOOK_S, _NAMED_S = 0.02, 1.0
_PARTICIPANT = 12  # bytes of an endpoint's id that all of its process begin with


class Rivals:
    """Looks at a topic's publishers.

    Args:
        node: the process's node.
        topic: name of the topic, from the root.

    Attributes:
        own: how many publishers this node has made itself.
    """

    def __init__(self, node: RosNode, topic: str) -> None:
        self.own = 0
        self._handle, self._topic = node.handle, topic

    @property
    def words(self) -> str:
        """Who publishes as well, by the names that are known by now; empty for nobody."""
        found = self._found()
        if len(found) <= self.own:
            return ""
        names = ", ".join(self._names(found))
        return f"others publish {self._topic}{': ' if names else ''}{names}"

    def named_words(self, hurries: Callable[[], bool] = lambda: False) -> str:
        """The same, once all names are known; waits for them, a second at most."""
        deadline_s = time.monotonic() + _NAMED_S
        while self._are_unknown() and time.monotonic() < deadline_s and not hurries():
            time.sleep(_LOOK_S)
        return self.words

    def _found(self) -> list[Any]:
        return list(self._handle.get_publishers_info_by_topic(self._topic))

    def _are_unknown(self) -> bool:
        return any(each.node_name == _UNKNOWN for each in self._found())

    def _names(self, found: list[Any]) -> Iterator[str]:
        names = Counter(_name(each) for each in found if each.node_name != _UNKNOWN)
        names[self._handle.get_fully_qualified_name()] -= self.own
        yield from sorted(+names)


class Commanders:
    """Looks at who publishes what only one actor at a time may.

    One that died is seen for up to 20 s, and its successor goes by its name.

    Args:
        node: the process's node.
        topics: names of the topics, from the root.
    """

    def __init__(self, node: RosNode, topics: Sequence[str]) -> None:
        self._handle, self._topics = node.handle, topics
        self._nameless: set[bytes] = set()

    def look(self) -> str:
        """Who they are, when they are several; empty otherwise.

        One whose name is not known yet counts from the second look on: most are by then.
        """
        names: dict[bytes, str] = {}
        for topic in self._topics:
            for each in self._handle.get_publishers_info_by_topic(topic):
                known = _name(each) if each.node_name != _UNKNOWN else ""
                process = bytes(each.endpoint_gid[:_PARTICIPANT])
                names[process] = known or names.get(process, "")
        nameless = {process for process, name in names.items() if not name}
        stays = "one without a name" if nameless & self._nameless else ""
        self._nameless = nameless
        found = sorted({*names.values(), stays} - {""})
        return f"several nodes command: {', '.join(found)}" if len(found) > 1 else ""


def _name(endpoint: Any) -> str:
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
