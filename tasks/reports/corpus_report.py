"""The corpus report: one HTML page that needs nothing else and runs nothing but its own two scripts.

Texts from outside are escaped by Jinja; in the data for the plots `<` is written as an escape. The page's
content security policy names the two scripts by their digests, so that no other can run, and allows no
connection to anywhere.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from tasks.markup import plain
from tasks.reports.figures import figures_of

TEMPLATES = Path(__file__).parent / "templates"
DRAW = """
const figures = JSON.parse(document.getElementById('figures').textContent);
for (const [name, figure] of Object.entries(figures)) {
  Plotly.newPlot(name, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
"""


def corpus_report(statistics: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page.

    Args:
        statistics: of `corpus_statistics`.
        facts: `name`, `digest`, `settings` (by dotted names) and `versions` of the corpus.
    """
    figures = {name: json.loads(figure.to_json()) for name, figure in figures_of(statistics).items()}
    scripts = [get_plotlyjs(), DRAW]
    return _environment().get_template("corpus_report.html.j2").render(
        statistics=statistics,
        facts=facts,
        figures=json_for_html(figures),
        figures_present=figures.keys(),
        scripts=scripts,
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
    )  # fmt: skip


def json_for_html(value: Any) -> str:
    """JSON that can stand in an HTML element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["shown"] = lambda value, most=1000: plain(value, most)
    return environment
