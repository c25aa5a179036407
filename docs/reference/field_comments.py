"""For the site: the comments of dataclass fields, which are the text of --help, become their documentation."""

import ast
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Takes a comment behind a field, or on the lines above it, for the field's docstring."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Look at the source of one field of a class."""
        if attr.docstring or not isinstance(node, ast.AnnAssign) or not attr.parent or not attr.parent.is_class:
            return
        lines = attr.lines_collection[attr.filepath]
        behind = lines[node.end_lineno - 1][node.end_col_offset :].strip()
        if behind.startswith("#"):
            text = behind
        else:
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#"):
                    break
                above.insert(0, line.strip())
            text = "\n".join(above)
        if comment := " ".join(line.lstrip("# ") for line in text.splitlines()):
            attr.docstring = griffe.Docstring(comment, parent=attr)
