"""Mistakes planted in a copy of what runs operators, each of which a test named here must notice."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
UNIT = "tests/runners/test_threads.py tests/runners/test_shipping.py"
RUNS = "tests/processes/test_executors.py"

MISTAKES = {
    "results come as they are ready": ("runners/ordered.py", "yield resolved(pending.popleft())\n        while", "yield resolved(pending.pop())\n        while", UNIT),
    "the window is one larger": ("runners/ordered.py", "if len(pending) >= window:\n                yield resolved", "if len(pending) > window:\n                yield resolved", UNIT),
    "what nobody takes still starts": ("runners/ordered.py", "                one.cancel()", "                pass", UNIT),
    "a stop wakes nobody": ("runners/stop.py", "self._raised.set_result(None)", "pass", UNIT),
    "a bundle that fails loses what came before": ("engine/bundles.py", "            if done:\n                raise Stopped(done, error) from error\n", "", UNIT),
    "one result that cannot be sent takes all with it": ("runners/outcome.py", "if isinstance(result, list) else ()", "if False else ()", UNIT),
    "control overtakes a bundle": ("runners/ordered.py", "        if bundle:\n            yield bundle\n            bundle = []\n        yield item", "        yield item", UNIT),
    "a bundle that kills is blamed as a whole": ("engine/carrier.py", "if len(batches) > 1:  # to find", "if False:  # to find", "tests/processes/test_executors.py -k kills_every"),
    "auto forgets control between two that it measures": ("engine/legs.py", "            yield from self._pooled(steps, iter(rest))\n", "", "tests/processes/test_auto.py -k sentinels"),
    "auto waits for processes that start": ("engine/carrier.py", "not self.patient or self.remote.ready", "True", "tests/engine/test_carrier.py"),
    "the most that waits is not kept": ("emit/pump.py", "max(self.most_waiting_bytes, self._bytes)", "0", "tests/processes/test_memory.py -k 'halves and threads'"),
    "a thread dies of an exception": ("runners/threads.py", "future.set_exception(error)", "future.set_exception(error)\n            return", UNIT),
    "a thread keeps its last result": ("runners/threads.py", "            del result\n        del future, fn, args, kwargs", "        pass", UNIT),
    "both directions share a half": ("runners/memory.py", "(0, half) if parent else (half, 0)", "(0, 0)", UNIT),
    "messages are larger than the memory": ("runners/memory.py", "sum(lengths) <= self._half", "sum(lengths) <= 2 * self._half", UNIT),
    "an exception is taken at its word": ("runners/outcome.py", "return blob if type(again) is type(error) and str(again) == str(error) else None", "return blob", UNIT),
    "the cause is lost": ("runners/outcome.py", "error.__cause__ = _restored(cause) if cause is not None else RemoteTraceback(trace)", "error.__cause__ = RemoteTraceback(trace)", UNIT),
    "SystemExit ends a worker": ("runners/outcome.py", "except BaseException as raised:  # also SystemExit", "except Exception as raised:  # also SystemExit", UNIT),
    "imports inside functions are not seen": ("plan/shipping.py", 'instruction.opname == "IMPORT_NAME"', 'instruction.opname == "NONE"', UNIT),
    "inner functions are not looked into": ("plan/shipping.py", "yield from _used(inner, names)", "pass", UNIT),
    "operators lose their file": ("plan/shipping.py", 'obj.co_filename if a == "<dynamic-code>" else a', "a", UNIT),
    "a dead worker's task is lost": ("runners/outcome.py", "ATTEMPTS = 3", "ATTEMPTS = 1", RUNS + " -k one_death"),
    "deaths are not counted": ("runners/processes.py", "self.deaths += 1", "self.deaths += 0", RUNS + " -k 'one_death or keep_dying'"),
    "a fork may close its parent's workers": ("emit/guard.py", "return os.getpid() == self._pid", "return True", RUNS + " -k forked"),
    "two threads may take": ("emit/guard.py", "if not self._busy.acquire(blocking=False):", "if False:", RUNS + " -k two_threads"),
    "the queue is not bounded by bytes": ("emit/pump.py", "return not self._waiting or self._bytes + size <= self._most", "return True", RUNS + " -k huge"),
    "records under way are not bounded by bytes": ("engine/sizes.py", "if self._per_record * self._most <= self._ceiling:", "if True:", RUNS + " -k huge"),
    "nothing larger than the ceiling passes": ("emit/pump.py", "return not self._waiting or self._bytes", "return self._bytes", RUNS + " -k larger_than"),
    "a hung thread is waited for": ("engine/legs.py", "watch.seconds_left(limit) <= 0", "False", RUNS + " -k 'hung and threads'"),
    "the worker never looks at the time": ("runners/processes.py", "time.monotonic() - since > timeout_s", "False", RUNS + " -k 'hung and processes'"),
    "the time is that of all operators": ("runners/memory.py", "self.memory.map[0] = turn", "self.memory.map[0] = 1", RUNS + " -k the_timeout_is"),
    "workers do not look after their parent": ("runners/worker.py", "    connection.wait([parent.sentinel])\n        os._exit(1)", "    return", "tests/processes/test_shutdown.py -k parent_is_killed"),
    "the script is not hidden": ("runners/hidden.py", 'sys.modules["__main__"] = stand_in', "pass", "tests/processes/test_shutdown.py -k without_a_guard"),
    "Ctrl-C reaches the workers": ("runners/worker.py", "signal.signal(signal.SIGINT, signal.SIG_IGN)", "pass", "tests/processes/test_shutdown.py -m 'long or slow' -k 'ctrl_c and steady and processes'"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_noticed(name, tmp_path):
    import shlex

    file, right, wrong, tests = MISTAKES[name]
    ignored = shutil.ignore_patterns("__pycache__", "demo*", "docs", "golden")
    for folder in ("zephon_jax", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "zephon_jax" / file
    text = path.read_text()
    assert text.count(right) == 1, "the text to replace is gone: bring the mistake up to date"
    path.write_text(text.replace(right, wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--timeout", "60", *shlex.split(tests)]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 1, f"the mistake went unnoticed:\n{run.stdout[-2000:]}"
    assert "SyntaxError" not in run.stdout, run.stdout[-500:]
