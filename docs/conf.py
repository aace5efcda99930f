"""Sphinx configuration. Build with `sphinx-build -W -b html docs docs/_build`."""

import importlib.metadata
import re
from typing import Any

project = "zephon-jax"
author = "The zephon-jax authors"
copyright = "The zephon-jax authors, Apache-2.0"
release = version = importlib.metadata.version("zephon-jax")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"

html_theme = "furo"
html_title = f"zephon-jax {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False


_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))")
_properties: dict[str, list[str]] = {}


def _keep_property(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """napoleon takes what stands before a colon in a property's docstring for its type: set the text aside."""
    if what == "property":
        _properties[name] = lines.copy()


def _markdown_code(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings mark code with single backticks, as Markdown does; reStructuredText wants two and no letter behind."""
    text = "\n".join(_properties.pop(name, lines))
    lines[:] = _CODE.sub(lambda match: f"``{match[1]}``" + ("\\ " if match[2] else ""), text).split("\n")


_LITERAL = re.compile(r'<span class="pre">([^<>]{30,})</span>')
_JOINT = re.compile(r"(?<=[/:_])(?=\w)|(?<=\.)(?=\w{4})")  # not before the suffix of a file


def _break_at_joints(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """A browser does not break `tests/emit/test_global.py::test_a_resume`; `<wbr>` allows it, and is never copied."""
    if "body" in context:
        context["body"] = _LITERAL.sub(
            lambda match: f'<span class="pre">{_JOINT.sub("<wbr>", match[1])}</span>', context["body"]
        )


def setup(app: Any) -> None:
    app.connect("html-page-context", _break_at_joints)
    app.connect("autodoc-process-docstring", _keep_property, priority=400)  # napoleon is at 500
    app.connect("autodoc-process-docstring", _markdown_code, priority=600)
