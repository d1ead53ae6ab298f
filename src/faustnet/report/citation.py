"""How to cite the paper and this software, as BibTeX. The file CITATION.cff has the same names."""

from faustnet.version import VERSION

TITLE = "faustnet: train neural networks layer by layer, without backpropagation between layers"
AUTHORS = "The faustnet authors"
PAPER = "Reshaping the Forward-Forward Algorithm with a Similarity-Based Objective"
PAPER_AUTHORS = (
    "James Gong", "Raymond Luo", "Emma Wang", "Leon Ge", "Bruce Li", "Felix Marattukalam", "Waleed Abdulla",
)  # fmt: skip


def bibtex(*, paper: bool) -> str:
    """Return an entry for this software, after one for the paper on FAUST if `paper`."""
    article = [("title", f"{{{PAPER}}}"), ("author", " and ".join(PAPER_AUTHORS))]
    software = [("title", f"{{{TITLE}}}"), ("author", f"{{{AUTHORS}}}"), ("version", VERSION)]
    return ("\n\n".join([_entry("article", "faust", article)] * paper + [_entry("software", "faustnet", software)])) + "\n"


def _entry(kind: str, key: str, fields: list[tuple[str, str]]) -> str:
    lines = (f"  {name} = {{{value}}}," for name, value in fields)
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])
