"""Nothing in the source runs what it reads: no pickle, no eval, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {
    "eval", "exec", "compile", "os.system", "os.popen", "pandas.read_pickle",
    "torch.load", "torch.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip
ARGUMENTS = {"allow_pickle", "shell"}


def forbidden(source: str) -> Iterator[str]:
    """Each forbidden import, call and argument, under the name that it is really known by."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {name.asname: name.name for name in node.names if name.asname}
            imported = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
            aliases |= named
            imported = list(named.values())
        else:
            continue
        yield from (f"imports {name}" for name in imported if name.split(".")[0] in MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, _, rest = ast.unparse(node.func).partition(".")
            name = ".".join(filter(None, [aliases.get(head, head), rest]))
            if name in CALLS:
                yield f"line {node.lineno} calls {name}"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in ARGUMENTS and not off:
                    yield f"line {node.lineno} passes {keyword.arg}"


def test_the_source_is_free_of_it() -> None:
    files = [
        path
        for folder in ("serl", "robots", "tasks", "sim", "launch")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in files
        for text in forbidden(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path)",
        "from torch import load as restore\nrestore(path)",
        "import yaml\nyaml.load(text, yaml.SafeLoader)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "eval(text)",
        "exec(text)",
        "import os\nos.system(line)",
    ],
)
def test_a_planted_use_is_caught(source: str) -> None:
    assert len(list(forbidden(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "network.eval()",
        "import torch\ntorch.compile(network)",
        "import re\nre.compile(text)",
        "import yaml\nyaml.safe_load(text)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "from safetensors.torch import load\nload(data)",
    ],
)
def test_what_is_harmless_passes(source: str) -> None:
    assert list(forbidden(source)) == []
