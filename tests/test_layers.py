"""The architecture, checked: who may import whom, what stays pure, where jax may be, how long a file may be.

The rules are tables; `problems` reads a package's source and lists every breach. The last tests plant breaches in a
small package of their own, one of each kind, so that a check which has gone blind fails too.
"""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

PACKAGE = "zephon_jax"
ROOT = pathlib.Path(__file__).parents[1] / PACKAGE

# Top-down. A room may import itself and the rooms on lines below its own; rooms on one line do not know each other.
LAYERS = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"bar", "bench", "demo", "inspection", "integrations", "picture", "testing"}),
    frozenset({"named"}),
    frozenset({"pipeline"}),
    frozenset({"emit"}),
    frozenset({"engine"}),
    frozenset({"runners"}),
    frozenset({"plan", "checkpoint"}),
    frozenset({"coordinate"}),  # agrees on parts of a checkpoint without looking into them
    frozenset({"sources", "work", "ops", "metrics"}),
    frozenset({"display"}),  # values in, pictures out
    frozenset({"types", "origin", "columns", "deferred", "errors", "lanes", "microbatch", "options"}),
)
# The nouns at the bottom are made of each other (a micro-batch has columns and an origin).
BOTTOM = LAYERS[-1]
# Everything above this line is what users see; it may import the public names of the package, lower rooms may not.
PUBLIC = LAYERS[0] | LAYERS[1] | LAYERS[2]

# Decisions in, decisions out: no threads, clocks, files, environment, global randomness or devices.
PURE = (
    "types",
    "origin",
    "columns",
    "deferred",
    "display",
    "errors",
    "lanes",
    "microbatch",
    "engine.lane",
    "engine.merge",
    "engine.receipts",
    "engine.replay",
    "engine.tasks",
    "engine.measure",
    "work.permutation",
    "work.quota",
    "work.cursor",
    "work.segments",
    "work.schedule",
    "work.deal",
    "work.tokens",
    "work.arguments",
    "emit.topology",
    "plan.choose",
    "ops.pack.bins",
    "ops.pack.cuts",
    "ops.pack.joint",
    "ops.pack.layout",
    "checkpoint.agree",
    "checkpoint.codec",
    "checkpoint.marks",
    "checkpoint.merge",
    "checkpoint.pointers",
    "checkpoint.schema",
    "coordinate.protocol",
)
IMPURE = frozenset(
    "threading multiprocessing concurrent asyncio queue signal sched "  # who runs when
    "time datetime random secrets uuid "  # another answer each time
    "os pathlib shutil tempfile glob mmap socket ssl http urllib subprocess "  # the world outside
    "logging warnings jax jaxlib orbax tensorstore".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})

# A worker process that imports jax may claim the accelerator, so it stays in few places.
DEVICE_LIBRARIES = frozenset({"jax", "jaxlib", "orbax"})
DEVICE_ROOMS = ("emit", "checkpoint.orbax", "coordinate.jaxkv", "demo", "integrations")

MAX_LINES = 450


def modules(root: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Dotted names below the package with their files; the package itself is the empty name."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Line, absolute dotted target and whether it runs, for each import; a relative one has a target of dots.

    `from a import b` gives `a.b`: whether b is a module or a name in one is for the caller to see. Dynamic imports of a
    literal name count as well.
    """
    quiet: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and is_type_checking(node.test):
            quiet.update(id(child) for statement in node.body for child in ast.walk(statement))
        runs = id(node) not in quiet
        match node:
            case ast.Import(names):
                for alias in names:
                    yield node.lineno, alias.name, runs
            case ast.ImportFrom(module, names, 0):
                for alias in names:
                    yield node.lineno, f"{module}.{alias.name}", runs
            case ast.ImportFrom():
                yield node.lineno, "." * node.level, runs
            case ast.Call(func, [ast.Constant(str() as target), *_]) if ast.unparse(func).split(".")[-1] in (
                "import_module",
                "__import__",
            ):
                yield node.lineno, target, runs
            case _:
                pass


def problems(root: pathlib.Path, package: str = PACKAGE) -> list[str]:
    """Every breach of the rules above in the package at `root`, as `module:line: what`."""
    level = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}
    known = {name for name, _ in modules(root)}
    found: list[str] = []
    for name, path in modules(root):
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MAX_LINES:
            found.append(f"{name}: {lines} lines, limit {MAX_LINES}")
        here = name.split(".")[0]
        if here and here not in level:
            found.append(f"{name}: room {here} is in no layer; add it to LAYERS")
            continue
        tree = ast.parse(text)
        pure = within(name, PURE)
        for line, target, runs in imports(tree):
            where = f"{name}:{line}"
            top, *rest = target.split(".")
            if not top:
                found.append(f"{where}: relative import")
            elif top == package and here:
                if not rest or rest[0] not in {module.split(".")[0] for module in known if module}:
                    if here not in PUBLIC:
                        found.append(f"{where}: only {sorted(PUBLIC)} may import the package's public names")
                elif rest[0] not in level:
                    found.append(f"{where}: room {rest[0]} is in no layer; add it to LAYERS")
                elif rest[0] != here and not ({here, rest[0]} <= BOTTOM) and level[rest[0]] <= level[here]:
                    found.append(f"{where}: {here} may not import {rest[0]}")
            if pure and top in IMPURE:
                found.append(f"{where}: pure module imports {top}")
            elif runs and top in DEVICE_LIBRARIES and not within(name, DEVICE_ROOMS):
                found.append(f"{where}: imports {top}; only {', '.join(DEVICE_ROOMS)} may")
        if pure:
            found.extend(impure_calls(name, tree))
    return found


def impure_calls(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{name}:{node.lineno}: pure module calls {node.func.id}()"


def test_the_package_keeps_the_rules() -> None:
    assert problems(ROOT) == []


def test_every_room_is_in_one_layer() -> None:
    rooms = [room for layer in LAYERS for room in layer]
    assert len(rooms) == len(set(rooms))


@pytest.mark.parametrize("name", PURE)
def test_pure_names_point_at_modules(name: str) -> None:
    """A typing error in PURE would check nothing, quietly."""
    path = ROOT.joinpath(*name.split("."))
    assert path.with_suffix(".py").is_file() or path.is_dir()


def test_importing_the_package_imports_no_jax() -> None:
    """Workers, command-line tools and type checkers pay neither the seconds nor the accelerator."""
    code = (
        "import sys, zephon_jax\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'jaxlib', 'orbax', 'tensorstore'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


# --- the check itself: each planted breach is found, and nothing else -------------------------------------------------

LEGAL = {
    "__init__.py": "from zephon_jax.pipeline import run\nfrom zephon_jax.errors import Bad\n",
    "errors.py": "class Bad(Exception): ...\n",
    "columns.py": "import numpy as np\nfrom zephon_jax.errors import Bad\n",
    "work/__init__.py": "",
    "work/quota.py": "from zephon_jax.columns import np\nfrom zephon_jax.work import cursor\n",
    "work/cursor.py": "import math\n",
    "ops/__init__.py": "from zephon_jax import columns\n",
    "engine/__init__.py": "",
    "engine/lane.py": "from zephon_jax.errors import Bad\n",
    "engine/pump.py": "import threading, time\nfrom zephon_jax.engine import lane\nimport zephon_jax.ops\n",
    "emit/__init__.py": "",
    "emit/sharding.py": "import jax\nfrom zephon_jax.engine.pump import lane\n",
    "pipeline.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import jax\n"
        "def run():\n    from zephon_jax.emit import sharding\n    return sharding\n"
    ),
    "demo.py": "import jax\nimport zephon_jax as zj\nfrom zephon_jax import run\n",
    "cli.py": "def main():\n    from zephon_jax import demo\n    return demo\n",
}
SEEDED = {
    "upward": ("columns.py", "from zephon_jax.work.quota import np\n", "columns may not import work"),
    "upward-by-name": ("ops/__init__.py", "from zephon_jax import engine\n", "ops may not import engine"),
    "sideways": ("work/cursor.py", "import zephon_jax.ops\n", "work may not import ops"),
    "inside-a-function": (
        "ops/__init__.py",
        "def f():\n    from zephon_jax.emit import sharding\n",
        "ops may not import emit",
    ),
    "for-types-only": (
        "engine/pump.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from zephon_jax.pipeline import run\n",
        "engine may not import pipeline",
    ),
    "dynamic": (
        "engine/pump.py",
        "import importlib\nimportlib.import_module('zephon_jax.pipeline')\n",
        "engine may not import pipeline",
    ),
    "public-names-from-below": ("engine/pump.py", "import zephon_jax\n", "may import the package's public names"),
    "public-name-from-below": ("emit/sharding.py", "from zephon_jax import run\n", "may import the package's public"),
    "relative": ("work/quota.py", "from . import cursor\n", "relative import"),
    "thread-in-pure": ("engine/lane.py", "import threading\n", "pure module imports threading"),
    "clock-in-pure": ("work/cursor.py", "from time import monotonic\n", "pure module imports time"),
    "device-in-pure": (
        "engine/lane.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\n",
        "pure module imports jax",
    ),
    "file-in-pure": ("engine/lane.py", "x = open('f')\n", "pure module calls open()"),
    "jax-below": ("engine/pump.py", "import jax.numpy as jnp\n", "imports jax; only emit"),
    "orbax-at-the-root": ("__init__.py", "from orbax import checkpoint\n", "imports orbax; only emit"),
    "new-room": ("utils.py", "\n", "room utils is in no layer"),
    "long": ("engine/pump.py", "\n" * (MAX_LINES + 1), f"limit {MAX_LINES}"),
}


def plant(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / PACKAGE


def test_a_legal_package_has_no_problems(tmp_path: pathlib.Path) -> None:
    assert problems(plant(tmp_path, LEGAL)) == []


@pytest.mark.parametrize("case", SEEDED)
def test_a_seeded_violation_is_found(case: str, tmp_path: pathlib.Path) -> None:
    file, text, expected = SEEDED[case]
    found = problems(plant(tmp_path, LEGAL | {file: LEGAL.get(file, "") + text}))
    assert len(found) == 1, found
    assert expected in found[0]
