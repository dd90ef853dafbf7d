"""Detection of competing publishers: of an arm's setpoints, commands or measurements."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from serl.ros.node import RosNode
from serl.system.json_fields import printable

_UNKNOWN = "_NODE_NAME_UNKNOWN_"  # rmw's name when a publisher is discovered before its node
_LOOK_S, _NAMED_S = 0.02, 1.0
_BURIED_S = 30.0
"""Time after which a second process of the same name is no longer a dead one's successor: a dead
process stays visible for up to 20 s."""

_REMEMBERED_S = 3.0
"""Time for which a competitor is still reported after it was last seen: one that publishes for
short moments, between which it is not seen, must not release the arm."""

_NAMELESS = "one without a name"


class _Publisher(NamedTuple):
    """A publisher in the ROS graph; its node's name is empty until it is known."""

    node: str
    endpoint: bytes

    @property
    def process(self) -> bytes:
        """The leading bytes of the endpoint's id, which are common to its process."""
        return self.endpoint[:12]


class _PublisherWatch:
    """Base of the detectors, which report a competitor until 3 s after it was last seen.

    Args:
        topics: names of the topics, from the root.
        now_s: monotonic seconds.
    """

    def __init__(
        self,
        node: RosNode,
        topics: Sequence[str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle, self._topics, self._now_s = node.handle, topics, now_s
        self._last = ("", -math.inf)  # the last report that was not empty, and its time

    def _remembered(self, report: str) -> str:
        """Return the report; if it is empty, the last one of up to 3 s ago."""
        now_s, (last, seen_s) = self._now_s(), self._last
        if report:
            self._last = report, now_s
        return report or (last if now_s - seen_s < _REMEMBERED_S else "")

    def _publishers(self, topic: str) -> Iterator[_Publisher]:
        for each in self._handle.get_publishers_info_by_topic(topic):
            name = printable(f"{each.node_namespace.rstrip('/')}/{each.node_name}")
            known = "" if each.node_name == _UNKNOWN else name
            yield _Publisher(known, bytes(each.endpoint_gid))


class OtherPublishers(_PublisherWatch):
    """Detector of other nodes' publishers on topics.

    Attributes:
        own: number of this node's own publishers on each topic.
    """

    own = 0

    @property
    def report(self) -> str:
        """The other publishers of each topic, by the names known so far; empty without any."""
        return self._remembered("; ".join(filter(None, map(self._report_on, self._topics))))

    def named_report(self, is_urgent: Callable[[], bool] = lambda: False) -> str:
        """Return `report` once all node names are known.

        Blocks for at most a second, and no longer once `is_urgent` returns True.
        """
        deadline_s = time.monotonic() + _NAMED_S
        while self._are_unknown() and time.monotonic() < deadline_s and not is_urgent():
            time.sleep(_LOOK_S)
        return self.report

    def _report_on(self, topic: str) -> str:
        found = list(self._publishers(topic))
        if len(found) <= self.own:
            return ""
        names = Counter(each.node for each in found if each.node)
        names[self._handle.get_fully_qualified_name()] -= self.own
        others = ", ".join(sorted(+names))
        return f"others publish {topic}{': ' if others else ''}{others}"

    def _are_unknown(self) -> bool:
        return any(not each.node for topic in self._topics for each in self._publishers(topic))


class CommandPublishers(_PublisherWatch):
    """Detector of several publishers on the command topics, which one actor at a time may use.

    A process that died stays visible, and its successor has the same node name. So two processes
    of one name are accepted for 30 s if both were visible when the present controller began, and
    are reported only while both are seen, so that the successor's lease begins without them.
    """

    _nameless: Collection[bytes] = ()
    _since_s, _initial = math.nan, frozenset[bytes]()  # processes seen when the lease began

    def check(self, since_s: float) -> str:
        """Return the names of the publishers when there are several; empty otherwise.

        A node whose name is not yet known counts from the second call on; most are known by then.

        Args:
            since_s: monotonic time in seconds at which the active controller began to drive.
        """
        names: dict[bytes, str] = {}
        for topic in self._topics:
            for each in self._publishers(topic):
                names[each.process] = each.node or names.get(each.process, "")
        if since_s != self._since_s:
            self._since_s, self._initial = since_s, frozenset(names)
        nameless = {process for process, name in names.items() if not name}
        stays = _NAMELESS if nameless.intersection(self._nameless) else ""
        self._nameless = nameless
        found, namesake = {*names.values(), stays}, self._namesake(names)
        remembered = self._remembered(_several(found))
        return _several({*found, namesake}) if namesake else remembered

    def _namesake(self, names: Mapping[bytes, str]) -> str:
        """Return a name that two processes share; empty if one may be a dead predecessor."""
        lasts = self._now_s() - self._since_s > _BURIED_S
        named = Counter(filter(None, names.values()))
        came = {name for process, name in names.items() if process not in self._initial}
        twice = [name for name, count in named.items() if count > 1 and (lasts or name in came)]
        return f"another {twice[0]}" if twice else ""


def _several(names: Collection[str]) -> str:
    """Return the nodes that command, by name, if there are several; empty otherwise."""
    found = sorted({*names} - {""})
    return f"several nodes command: {', '.join(found)}" if len(found) > 1 else ""


class DuplicatePublishers(_PublisherWatch):
    """Detector of a second publisher on the measurement topics of an arm's driver.

    A driver that was killed stays visible, and its successor has the same node name. So two
    processes of one name are accepted for 30 s if the later one appeared while the measurement was
    missing.
    """

    def __init__(
        self,
        node: RosNode,
        topics: Sequence[str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(node, topics, now_s)
        self._records: dict[str, dict[bytes, _PublisherRecord]] = {topic: {} for topic in topics}
        self._members: dict[str, set[str]] = {topic: set() for topic in topics}

    def check(
        self, resumed: Callable[[str], bool], shared: Collection[str] = (), accepts: bool = False
    ) -> str:
        """Return the topics with several publishers, and their node names; empty for none.

        A node whose name is not yet known counts from the second call on; most are known by then.

        Args:
            resumed: returns whether the measurement on a topic is missing, or was a moment ago.
            shared: topics on which several nodes publish by design, each for different joints.
                Publishers that appear after the last call with `accepts` are a fault there, too,
                under a new name or beside another process of the same name.
            accepts: no arm is driven or held, so the present publishers are accepted.
        """
        found = []
        for topic in self._records:
            words, names = self._look_at(topic, resumed)
            if accepts:
                self._members[topic] = names
            if topic not in shared or not names <= self._members[topic]:
                found.append(words)
        return self._remembered("; ".join(filter(None, found)))

    def _look_at(self, topic: str, resumed: Callable[[str], bool]) -> tuple[str, set[str]]:
        """Return the publishers of a topic: in words if there are several, and each of them."""
        before, now_s = self._records[topic], self._now_s()
        records: dict[bytes, _PublisherRecord] = {}
        for each in self._publishers(topic):
            if (old := before.get(each.endpoint)) is None:
                succeeds = not before or resumed(topic)
                records[each.endpoint] = _PublisherRecord(
                    each.node, now_s + (_BURIED_S if succeeds else 0.0)
                )
            else:
                records[each.endpoint] = old._replace(name=each.node or old.name or _NAMELESS)
        self._records[topic] = records
        names = sorted({each.name for each in records.values()} - {""})
        twice = [f"another {name}" for name in names if _is_doubled(name, records, now_s)]
        nodes = [*names, *twice]
        several = f"several nodes publish {topic}: {', '.join(nodes)}" if len(nodes) > 1 else ""
        return several, {*nodes}


class _PublisherRecord(NamedTuple):
    """A publisher's node name, and the time until which it counts as a dead node's successor."""

    name: str
    until_s: float


def _is_doubled(name: str, records: Mapping[bytes, _PublisherRecord], now_s: float) -> bool:
    """Return whether two processes of this name publish, and neither is presumed dead."""
    same = [_Publisher(name, end) for end, each in records.items() if each.name == name]
    several = len({each.process for each in same}) > 1
    return several and now_s >= max(records[each.endpoint].until_s for each in same)
