"""The classes that docs/adding-a-method.md defines, as a module."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"
_layer, _method, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
exec(compile(_layer + _method, PAGE.name, "exec"))
