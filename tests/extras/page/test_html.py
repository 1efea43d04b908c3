"""The page is one file: everything in it, nothing else allowed to it, and nothing in its data does anything."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from run_folders import HOSTILE

from outdo.extras.page import html as module
from outdo.extras.page.html import render_page

STATIC = Path(module.__file__).parent / "static"
ENDINGS = ("</script>", "<!--<script>", "]]>", "\u2028\u2029", "\ud800", "\x00", *HOSTILE)


class Elements(HTMLParser):
    """What a browser would see: the elements, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.texts.append(data)


def run(name: str = "small") -> dict:
    return {"name": name, "findings": [{"text": text} for text in ENDINGS]}


def test_the_vendored_files_equal_the_published_ones():
    readme = (STATIC / "vendor/README.md").read_text()
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE))
    known = {digest: (STATIC / "vendor" / name).read_bytes() for digest, name in listed.items()}
    assert {digest: hashlib.sha256(content).hexdigest() for digest, content in known.items()} == {d: d for d in known}
    code = [path.name for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".css")]
    assert sorted(listed.values()) == sorted(code)
    for licence in ("htm.LICENSE", "preact.LICENSE", "uPlot.LICENSE"):
        assert licence in readme
        assert "Copyright" in (STATIC / "vendor" / licence).read_text()


def test_every_own_script_is_listed_in_order():
    assert sorted((STATIC / "ORDER").read_text().split()) == sorted(path.name for path in STATIC.glob("*.js"))


def test_the_security_policy_allows_only_the_hashes_of_scripts_and_styles():
    elements = Elements(render_page([run()]))
    meta = next(a for tag, a in elements.found if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    allowed = dict(part.split(" ", 1) for part in str(meta["content"]).split("; "))
    assert allowed.pop("default-src") == "'none'"
    assert allowed.pop("base-uri") == allowed.pop("form-action") == "'none'"
    assert allowed.pop("img-src") == "data:"
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in elements.texts}
    named = set(" ".join(allowed.values()).split())
    assert named <= hashes  # each hash is that of an element as it stands in the page
    assert len(hashes - named) == 1  # the data, which is no script
    assert set(allowed) == {"script-src", "style-src"}


def test_the_page_fetches_nothing_and_has_no_handlers_and_no_style_attributes():
    for tag, attributes in Elements(render_page([run()])).found:
        assert "src" not in attributes
        assert str(attributes.get("href", "data:,")) == "data:,", tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_data_cannot_close_its_element_and_is_decoded_unchanged():
    text = render_page([run()])
    (data,) = re.findall(r'<script type="application/json" id="outdo-data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["runs"] == [run()]
    assert "<" not in data
    assert data.isascii()


def test_the_page_has_a_language_a_title_and_a_note_about_javascript():
    text = render_page([run("first"), run("second")])
    assert '<html lang="en">' in text
    assert "<title>first and second · outdo</title>" in text
    assert re.search(r"<noscript><p>.*JavaScript is switched off.*</p></noscript>", text)


def test_no_two_scripts_define_one_name() -> None:
    """They share one scope: the second function of a name would silently replace the first."""
    names = [
        name
        for script in sorted(STATIC.glob("*.js"))
        for name in re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script.read_text("utf-8"), re.M)
    ]
    assert len(names) > 200
    assert not [name for name, count in Counter(names).items() if count > 1]
