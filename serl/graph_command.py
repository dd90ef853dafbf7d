"""`serl doctor --graph`: who publishes what to whom in a run or a domain, and what is wrong."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serl.arm_profile import SIM
from serl.errors import BadInput
from serl.graph_seen import Endpoint, GraphSeen, TopicSeen, problems
from serl.robot_command import seen_with
from serl.run_folder import RunFolder

LISTEN_S = 3.0
_WIDTH = 160


def examine(target: str, seconds: float = LISTEN_S) -> bool:
    """Print a table of topics and a line for each problem; whether there is none.

    Args:
        target: folder of a run, number of a ROS domain, or nothing for that of the environment.
        seconds: to measure rates for.

    Raises:
        BadInput: there is no such run or domain, or ROS 2 is missing.
    """
    from serl.ros.graph_look import Look
    from serl.ros.node import RosNode

    run = None if target == "" or target.isdecimal() else RunFolder.open(Path(target))
    with _place(target, run) as folder, RosNode("doctor", folder, local=True) as node:
        look = Look(node)
        look.settle()
        graph = look.listen(seconds)
        root = node.absolute("").rstrip("/") if run else ""
        expected = expected_nodes(run, root) if run else ()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    show(console, graph, root)
    found = list(problems(graph, expected))
    if not graph.nodes:
        domain = os.environ["ROS_DOMAIN_ID"]
        found = [f"domain {domain}: no node is there; {seen_with(domain)}"]
        if run is not None:
            found = [f"{run.path}: none of its processes runs; its domain was {domain}"]
    for line in found:
        console.print(Text(f"BAD  {line}", style="red"), soft_wrap=True)
    if not found:
        console.print(f"ok   {len(graph.nodes)} nodes, {len(graph.topics)} topics")
    return not found


def show(console: Console, graph: GraphSeen, root: str = "") -> None:
    """Print who is there, and the topics; names below a namespace `root` are told without it."""
    below = f"{root}/"
    nodes = ", ".join(name.removeprefix(below) for name in graph.nodes)
    console.print(f"nodes: {nodes or 'none'}", soft_wrap=True)
    if not graph.topics:
        return
    if root:
        console.print(f"names that begin without a slash are below {below}", soft_wrap=True)
    console.print("? sends or takes with best effort, * keeps the last for who comes later")
    table = Table(box=None, pad_edge=False)
    for title in ("topic", "type", "Hz", "publishers", "subscriptions"):
        table.add_column(title, justify="right" if title == "Hz" else "left", overflow="fold")
    for topic in graph.topics:
        table.add_row(
            topic.name.removeprefix(below),
            " ".join(kind.rpartition("/")[2] for kind in topic.types),
            _rate(topic),
            _ends(topic.publishers),
            _ends(topic.subscriptions),
        )
    console.print(table)


def expected_nodes(run: RunFolder, root: str) -> list[str]:
    """Full names of the nodes of a run while it trains, or of the parts of it that were started."""
    from serl.ros.graph import actor_names
    from serl.ros.names import guard_name, ros_name

    announced = sorted(path.name for path in run.path.glob("link/*") if path.is_dir())
    deployed = not (run.path / "index.sqlite").exists() and (run.path / "trials.jsonl").exists()
    names = [] if deployed else [f"{root}/learner"]
    for actor in announced or actor_names(run):
        name = ros_name(actor)
        names.append(f"{root}/{name}")
        if not deployed:
            names.append(f"{root}/link_{name}")
        if run.config.robot == SIM:
            names += [f"{root}/guard_{name}", f"{root}/{actor}/arm"]
        elif run.config.robot and run.config.actors == 1:
            names.append(f"{root}/{guard_name(run.config.namespace)}")
    return names


@contextmanager
def _place(target: str, run: RunFolder | None) -> Iterator[Path]:
    """The folder whose settings a node of that graph has; the environment names the domain."""
    from serl.ros.environment import domain_id_of
    from serl.ros.graph import require_ros, started_domain_id

    require_ros()
    if run is not None:
        if not run.config.network.local:
            raise BadInput(f"{run.path}: a run of several hosts: look with `serl doctor --network`")
        os.environ["ROS_DOMAIN_ID"] = str(started_domain_id(run))
        yield run.path
        return
    os.environ["ROS_DOMAIN_ID"] = str(
        domain_id_of({"ROS_DOMAIN_ID": target} if target else os.environ)
    )
    with tempfile.TemporaryDirectory(prefix="serl-doctor-") as scratch:
        yield Path(scratch)


def _rate(topic: TopicSeen) -> str:
    if not topic.publishers or topic.rate_hz is None:
        return "-"
    return f"{topic.rate_hz:.1f}"


def _ends(ends: tuple[Endpoint, ...]) -> str:
    """Nodes, those of best effort with a question mark, those that latch with an asterisk."""
    marks = {
        end.node.rpartition("/")[2] + ("" if end.reliable else "?") + ("*" if end.latched else "")
        for end in ends
    }
    return ", ".join(sorted(marks)) or "nobody"
