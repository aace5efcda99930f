"""How long `import zephon_jax` takes in a fresh interpreter, and that jax is not in it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CODE = """
import time; began = time.perf_counter()
import zephon_jax
seconds = time.perf_counter() - began
import json, sys
print(json.dumps({"rate": 0.0, "units": 1, "import_s": seconds, "jax": "jax" in sys.modules}))
"""


def import_alone() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)
