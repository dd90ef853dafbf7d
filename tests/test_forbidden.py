"""No code execution from data: no pickle, eval or shell, checked in source and at run time.

The one exception: `serl.system.pickles` restricts the unpickler in Python so that it imports and
calls nothing by name. `tests/system/test_pickles.py` tests that; at run time it has no exception.
"""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("serl", "robots", "tasks", "sim", "launch", "docs", ".ci")
MODULES = {
    "pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve",
    "jsonpickle", "multiprocessing",
}  # fmt: skip
NAMES = {
    "eval", "exec", "compile", "__import__", "code.interact", "os.system", "os.popen",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "numpy.loads", "pandas.read_pickle", "torch.load", "torch.save", "torch.hub.load",
    "torch.jit.load", "torch.package", "torch.serialization",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all",
    "yaml.full_load", "yaml.full_load_all",
}  # fmt: skip
ARGUMENTS = {"allow_pickle", "shell"}


def forbidden(source: str) -> Iterator[str]:
    """Yield each forbidden import, name and argument, with aliases resolved."""
    nodes = list(ast.walk(ast.parse(source)))
    aliases: dict[str, str] = {}
    for node in nodes:
        for imported, alias in _imports(node):
            if alias:
                aliases[alias] = imported
            if imported.split(".")[0] in MODULES:
                yield f"imports {imported}"
    for node in nodes:
        match node:
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                if (name := _known(node, aliases)) in NAMES:
                    yield f"line {node.lineno} uses {name}"
            case ast.Call():
                yield from _arguments(node, aliases)


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a node imports, each with its alias or an empty string."""
    match node:
        case ast.Import(names=names):
            yield from ((name.name, name.asname or "") for name in names)
        case ast.ImportFrom(module=module, names=names):
            yield from ((f"{module}.{name.name}", name.asname or name.name) for name in names)
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if _dotted(function).split(".")[-1] in ("import_module", "__import__"):
                yield name, ""


def _dotted(node: ast.expr) -> str:
    """Return a name with its attributes; `?` stands for another expression before them."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{_dotted(value)}.{attribute}"
    return "?"


def _known(node: ast.expr, aliases: dict[str, str]) -> str:
    head, dot, rest = _dotted(node).removeprefix("builtins.").partition(".")
    return f"{aliases.get(head, head)}{dot}{rest}"


def _arguments(call: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    for keyword in call.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ARGUMENTS and not off:
            yield f"line {call.lineno} passes {keyword.arg}"
    if _known(call.func, aliases) == "numpy.load" and len(call.args) > 2:
        yield f"line {call.lineno} passes allow_pickle by position"


def test_source_uses_only_known_exception() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in files
        for text in forbidden(path.read_text())
    ]
    assert found == ["serl/system/pickles.py: imports pickle"]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as json",
        "from pickle import loads as parse",
        "from cloudpickle import loads",
        "def late():\n    import dill",
        "import joblib.memory",
        "import marshal",
        "import shelve",
        "import multiprocessing.connection",
        "import importlib\nimportlib.import_module('pickle')",
        "from importlib import import_module\nimport_module('dill')",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import torch as t\nt.load(path)",
        "from torch import load as restore\nrestore(path)",
        "import torch\nlist(map(torch.load, paths))",
        "import yaml\nyaml.load(text, yaml.SafeLoader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import numpy as np\nnp.load(path, None, True)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import subprocess\nsubprocess.getoutput(line)",
        "eval(text)",
        "exec(text)",
        "run = eval",
        "import builtins\nbuiltins.exec(text)",
        "import os\nos.system(line)",
        "from os import popen\npopen(line)",
    ],
)
def test_forbidden_use_is_detected(source: str) -> None:
    assert len(list(forbidden(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "network.eval()",
        "import torch\ntorch.compile(network)",
        "import re\nre.compile(text)",
        "import yaml\nyaml.safe_load(text)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import numpy as np\nnp.load(path)",
        "from safetensors.torch import load\nload(data)",
        "import importlib\nimportlib.import_module('json')",
        "import subprocess\nsubprocess.run(words, shell=False)",
    ],
)
def test_harmless_use_is_accepted(source: str) -> None:
    assert list(forbidden(source)) == []


GADGET = pickle.dumps(Path("/"))  # refers to a class by name, as every harmful pickle does


def test_unpickling_in_test_process_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([Path("/")], object), allow_pickle=True)
    readers: list[Callable[[], object]] = [
        lambda: pickle.loads(GADGET),
        lambda: pickle._Unpickler(BytesIO(GADGET)).load(),  # the pure-Python implementation
        lambda: np.load(tmp_path / "objects.npy", allow_pickle=True),
    ]
    for read in readers:
        with pytest.raises(Exception, match="unpickles") as refusal:
            read()
        assert type(refusal.value).__name__ == "Unpickled"


def test_unpickling_in_child_process_raises() -> None:
    code = f"import pickle; pickle.loads({GADGET!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Unpickled" in done.stderr


def test_pickle_of_plain_data_is_accepted() -> None:
    assert pickle.loads(pickle.dumps({"a": [1, 2.0, None]})) == {"a": [1, 2.0, None]}


def test_unmarshalling_raises_in_serl_but_not_elsewhere(tmp_path: Path) -> None:
    code = compile("import marshal; marshal.loads(b'N')", str(ROOT / "serl/planted.py"), "exec")
    with pytest.raises(Exception, match="unmarshals"):
        exec(code)
    elsewhere = compile("import marshal; marshal.loads(b'N')", os.devnull, "exec")
    exec(elsewhere)
