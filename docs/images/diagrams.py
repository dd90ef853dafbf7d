"""Draw the diagrams of the pages: python docs/images/diagrams.py [FOLDER].

Each is an SVG without scripts or fonts, for light and dark pages. The site puts it into its page,
whose theme sets the colours `--diagram-*`; other viewers use the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

Point = tuple[float, float]

STYLE = """
.NAME { --t: var(--diagram-text, #1f2328); --s: var(--diagram-faint, #59636e);
  --f: var(--diagram-fill, #f3f4f6); --l: var(--diagram-line, #6e7781); }
@media (prefers-color-scheme: dark) { .NAME { --t: var(--diagram-text, #e6edf3);
  --s: var(--diagram-faint, #9aa4af); --f: var(--diagram-fill, #22272e);
  --l: var(--diagram-line, #9aa4af); } }
.NAME text { font-family: system-ui, sans-serif; font-size: 13px; fill: var(--t);
  text-anchor: middle; }
.NAME .small { font-size: 11px; fill: var(--s); }
.NAME .start { text-anchor: start; }
.NAME .title { font-weight: 600; }
.NAME rect { fill: var(--f); stroke: var(--l); stroke-width: 1.2; }
.NAME .policy { stroke: #2f6fd0; fill: #2f6fd033; }
.NAME .human { stroke: #d9822b; fill: #d9822b33; }
.NAME .stop { stroke: #d1242f; fill: #d1242f2b; }
.NAME .hold { stroke: #b58900; fill: #b5890030; }
.NAME .good { stroke: #2f9e62; fill: #2f9e622e; }
.NAME .group { fill: none; stroke-dasharray: 5 4; }
.NAME path { fill: none; stroke: var(--l); stroke-width: 1.4; }
.NAME .dashed { stroke-dasharray: 5 4; }
.NAME marker path { fill: var(--l); stroke: none; }
"""


class Drawing:
    """A diagram that is built up from boxes, arrows and texts; coordinates in pixels."""

    def __init__(self, name: str, width: int, height: int, title: str) -> None:
        self._name = f"diagram-{name}"
        self._size, self._title = (width, height), title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, lines: Sequence[str], kind: str = ""
    ) -> None:
        """Draw a box with a title and further, smaller lines."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" class="{kind}"/>'
        )
        first = y + h / 2 + 4.5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            style = "title" if number == 0 else "small"
            self.text(x + w / 2, first + 16 * number, line, style)

    def group(self, x: float, y: float, w: float, h: float, label: str) -> None:
        """Draw a dashed frame with a label at its upper left."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="10" class="group"/>'
        )
        self.text(x + 10, y + 17, label, "small start")

    def arrow(
        self, points: Sequence[Point], label: str = "", at: Point | None = None, style: str = ""
    ) -> None:
        """Draw an arrow along points, with a label at its middle or at a point."""
        way = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
        self._parts.append(
            f'<path d="{way}" class="{style}" marker-end="url(#{self._name}-head)"/>'
        )
        if label:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) / 2, (y0 + y1) / 2 - 7)
            self.text(x, y, label, "small")

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """Write one line of text, centred unless its style is "start"."""
        self._parts.append(f'<text x="{x}" y="{y}" class="{style}">{escape(text)}</text>')

    def svg(self) -> str:
        """Return the diagram as SVG."""
        width, height = self._size
        style = STYLE.replace("NAME", self._name).replace("\n", " ").strip()
        head = (
            f'<marker id="{self._name}-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/></marker>'
        )
        parts = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{self._name}" role="img" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
            f"<title>{escape(self._title)}</title>\n<style>{style}</style>\n"
            f"<defs>{head}</defs>\n{parts}\n</svg>\n"
        )


def actor_learner() -> Drawing:
    """Draw the processes of a run and what passes between them."""
    d = Drawing("actor_learner", 760, 300, "The processes of a run")
    d.box(20, 120, 130, 62, ["Learner", "replay, updates"], "policy")
    d.box(240, 120, 130, 62, ["Link", "one per actor"])
    d.box(460, 120, 130, 62, ["Actor", "control loop"], "policy")
    d.box(460, 222, 130, 56, ["Log", "MCAP files"], "good")
    d.box(460, 20, 130, 56, ["Person", "or scripted human"], "human")
    d.box(660, 120, 84, 62, ["Guard", "and arm"], "hold")
    d.arrow([(150, 138), (240, 138)], "weights", (195, 130))
    d.arrow([(240, 166), (150, 166)], "transitions", (195, 184))
    d.arrow([(370, 138), (460, 138)], "weights file", (415, 130))
    d.arrow([(525, 182), (525, 222)], "every step", (560, 206))
    d.arrow([(460, 250), (305, 250), (305, 182)], "reads", (380, 243))
    d.arrow([(525, 76), (525, 120)], "takeover", (556, 102))
    d.arrow([(590, 138), (660, 138)], "target", (625, 130))
    d.arrow([(660, 166), (590, 166)], "readings", (625, 184))
    return d


def transitions() -> Drawing:
    """Draw the steps of an episode and its two kinds of end."""
    d = Drawing("transitions", 760, 230, "Steps of an episode and how it ends")
    for i, name in enumerate(["observation 0", "observation 1", "observation 2", "final"]):
        x = 10 + 195 * i
        lines = [name] if i < 3 else ["final observation"]
        d.box(x, 30, 145, 44, lines, "good" if i == 3 else "")
        if i < 3:
            label = f"action {i}, reward {i}"
            d.arrow([(x + 145, 52), (x + 195, 52)])
            d.text(x + 170, 96, label, "small")
    d.box(
        60, 140, 290, 66, ["terminated", "success or failure of the task", "no bootstrap"], "stop"
    )
    d.box(
        410,
        140,
        290,
        66,
        [
            "truncated",
            "time limit, operator, fault",
            "bootstrap from the final observation",
        ],
        "hold",
    )
    return d


def interventions() -> Drawing:
    """Draw an episode with a takeover, and the strata of replay that its steps enter."""
    d = Drawing("interventions", 760, 270, "An episode with a takeover")
    sources = "pppphhhppppp"
    for i, source in enumerate(sources):
        x = 20 + 60 * i
        d.box(x, 44, 54, 40, [str(i)], "human" if source == "h" else "policy")
    d.text(137, 32, "source: policy", "small")
    d.text(347, 32, "source: human", "small")
    d.text(587, 32, "source: policy", "small")
    d.text(287, 106, "takeover", "small")
    d.text(437, 106, "hand back", "small")
    d.box(
        60,
        170,
        280,
        70,
        ["Stratum: demonstrations", "demonstrations and human steps", "half of each batch"],
        "human",
    )
    d.box(
        420,
        170,
        280,
        70,
        ["Stratum: online", "all steps of this run", "half of each batch"],
        "policy",
    )
    d.arrow([(347, 114), (347, 140), (200, 140), (200, 170)])
    d.arrow([(347, 114), (347, 140), (560, 140), (560, 170)])
    d.arrow([(620, 88), (620, 170)])
    return d


def rewards() -> Drawing:
    """Draw the sources of the reward, and the ground truth beside them."""
    d = Drawing("rewards", 760, 336, "Sources of the reward")
    kinds = [
        ("task", "the task's own outcome"),
        ("classifier", "images"),
        ("pose", "pose of the tool"),
        ("human", "a person's keys"),
        ("vice", "learned while training"),
        ("topic", "a ROS node"),
        ("progress", "one of these, and progress"),
    ]
    for i, (name, text) in enumerate(kinds):
        d.box(20, 12 + 45 * i, 200, 40, [name, text])
        d.arrow([(220, 32 + 45 * i), (300, 167)])
    d.box(300, 134, 170, 66, ["reward and success", "of one step, with its source"], "good")
    d.arrow([(470, 167), (560, 167)])
    d.box(560, 138, 180, 58, ["Replay", "the learner's transitions"], "policy")
    d.box(300, 262, 170, 50, ["Ground truth", "simulation only"])
    d.arrow([(470, 287), (560, 287)])
    d.box(560, 258, 180, 58, ["Trials", "and choice of checkpoint"])
    return d


def resets() -> Drawing:
    """Draw how the scene is restored between two episodes."""
    d = Drawing("resets", 760, 260, "Restoring the scene between episodes")
    d.box(20, 40, 150, 60, ["Episode", "policy and takeovers"], "policy")
    d.box(230, 40, 150, 60, ["Scene ready?", "the task checks it"])
    d.box(460, 40, 200, 60, ["Reset episode", "script, in the log, not learned"])
    d.box(230, 170, 150, 60, ["Next episode"], "policy")
    d.box(460, 170, 200, 60, ["Arm holds", "a person is asked"], "hold")
    d.arrow([(170, 70), (230, 70)])
    d.arrow([(380, 60), (460, 60)], "no", (420, 52))
    d.arrow([(460, 84), (380, 84)], "done", (420, 100))
    d.arrow([(305, 100), (305, 170)], "yes", (322, 140))
    d.arrow([(560, 100), (560, 170)], "failed 3 times", (606, 140))
    d.arrow([(460, 200), (420, 200), (420, 120), (345, 120), (345, 100)], "restored", (446, 134))
    return d


def log() -> Drawing:
    """Draw the path of a step from the control loop to replay."""
    d = Drawing("log", 760, 250, "The path of a step from the control loop to replay")
    d.group(10, 10, 240, 226, "actor's process")
    d.group(268, 10, 176, 226, "link's process")
    d.group(466, 10, 284, 226, "learner's process")
    d.box(30, 40, 200, 48, ["Control loop", "a step is complete"], "policy")
    d.box(30, 150, 200, 60, ["Episode log", "one MCAP file per episode"], "good")
    d.box(288, 150, 140, 60, ["Tail", "reads what grows"])
    d.box(488, 150, 110, 60, ["Index", "accepts once"], "good")
    d.box(640, 150, 96, 60, ["Replay"], "policy")
    d.arrow([(130, 88), (130, 150)], "before the next action", (194, 124))
    d.arrow([(230, 180), (288, 180)])
    d.arrow([(428, 180), (488, 180)])
    d.arrow([(598, 180), (640, 180)])
    d.arrow([(543, 150), (543, 90), (358, 90), (358, 150)], "acknowledgement", (450, 82), "dashed")
    return d


def guard() -> Drawing:
    """Draw the guard between actor and arm."""
    d = Drawing("guard", 760, 250, "The guard between actor and arm")
    d.box(20, 90, 140, 66, ["Actor", "control loop"], "policy")
    d.box(290, 90, 150, 66, ["Guard", "100 Hz, a process"], "hold")
    d.box(580, 90, 160, 66, ["Arm", "driver and controller"])
    d.box(20, 186, 140, 52, ["Person", "console or device"], "human")
    d.arrow([(160, 112), (290, 112)], "target, heartbeat", (225, 104))
    d.arrow([(440, 112), (580, 112)], "setpoint, gripper", (510, 104))
    d.arrow([(580, 138), (440, 138)], "pose, joints, wrench", (510, 156))
    d.arrow([(660, 90), (660, 50), (90, 50), (90, 90)], "measurements, images", (375, 42))
    d.arrow([(90, 186), (90, 156)])
    d.arrow([(160, 212), (365, 212), (365, 156)], "stop, acknowledge, arm", (262, 205))
    return d


def guard_states() -> Drawing:
    """Draw the states of the guard."""
    d = Drawing("guard_states", 760, 350, "States of the guard")
    d.box(30, 130, 130, 60, ["disarmed", "publishes nothing"])
    d.box(280, 130, 130, 60, ["hold", "keeps the pose"], "hold")
    d.box(560, 20, 170, 44, ["policy"], "policy")
    d.box(560, 80, 170, 44, ["teleop"], "human")
    d.box(560, 140, 170, 44, ["reset, joints"])
    d.box(280, 270, 190, 60, ["protective stop", "gives way by 3 cm at most"], "stop")
    d.box(560, 270, 170, 60, ["estop", "gives way to nothing"], "stop")
    d.arrow([(160, 150), (280, 150)], "arm", (220, 142))
    d.arrow([(280, 172), (160, 172)], "disarm", (220, 188))
    d.arrow([(410, 140), (560, 42)])
    d.arrow([(410, 150), (560, 102)])
    d.arrow([(410, 160), (560, 162)], "heartbeat and target", (486, 178))
    d.arrow(
        [(645, 184), (645, 222), (378, 222), (378, 190)],
        "late, wrong, silent",
        (500, 215),
        "dashed",
    )
    d.arrow([(320, 190), (320, 270)], "contact, fault", (276, 246), "dashed")
    d.arrow([(700, 184), (700, 270)], "estop, from any state", (628, 252), "dashed")
    d.arrow([(280, 310), (70, 310), (70, 190)], "ack", (175, 302))
    d.arrow([(600, 330), (600, 342), (40, 342), (40, 190)], "ack, then reset", (175, 336))
    return d


DRAWINGS: tuple[Callable[[], Drawing], ...] = (
    *(actor_learner, transitions, interventions, rewards, resets, log, guard, guard_states),
)


def main(folder: Path) -> None:
    """Write all diagrams into a folder."""
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("diagrams"))
