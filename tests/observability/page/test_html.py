"""The page is one file: everything in it, nothing else allowed to it, and nothing in its data does anything."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import HOSTILE

from outdo.observability.page import html as module
from outdo.observability.page.html import embedded, notebook, page, policy

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


def test_the_vendored_files_are_those_that_were_published():
    readme = (STATIC / "vendor/README.md").read_text()
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE))
    known = {digest: (STATIC / "vendor" / name).read_bytes() for digest, name in listed.items()}
    assert {digest: hashlib.sha256(content).hexdigest() for digest, content in known.items()} == {d: d for d in known}
    code = [path.name for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".css")]
    assert sorted(listed.values()) == sorted(code)
    for licence in ("htm.LICENSE", "preact.LICENSE", "uPlot.LICENSE"):
        assert licence in readme
        assert "Copyright" in (STATIC / "vendor" / licence).read_text()


def test_every_script_of_ours_is_in_the_order():
    assert sorted((STATIC / "ORDER").read_text().split()) == sorted(path.name for path in STATIC.glob("*.js"))


def test_the_policy_allows_the_scripts_and_styles_by_their_hashes_and_nothing_else():
    elements = Elements(page([run()]))
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


def test_only_the_live_page_may_ask_and_only_its_own_server():
    assert "connect-src" not in policy()
    assert "connect-src 'self'" in policy(live=True)


def test_the_page_fetches_nothing_and_has_no_handlers_and_no_style_attributes():
    for tag, attributes in Elements(page([run()])).found:
        assert "src" not in attributes
        assert str(attributes.get("href", "data:,")) == "data:,", tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_data_cannot_end_its_element_and_comes_back_as_it_was():
    text = page([run()])
    (data,) = re.findall(r'<script type="application/json" id="outdo-data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["runs"] == [run()]
    assert "<" not in data
    assert data.isascii()


def test_a_number_that_json_has_not_is_never_written():
    with pytest.raises(ValueError, match="JSON"):
        embedded({"loss": float("nan")})


def test_a_hostile_name_stays_text():
    text = page([run("</title><script>alert(1)</script>\ud800")])
    assert text.encode()  # half of a surrogate pair has no bytes
    elements = Elements(text)
    plain = Elements(page([run()]))
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in plain.found]


def test_the_page_says_its_language_its_title_and_what_it_needs():
    text = page([run("first"), run("second")])
    assert '<html lang="en">' in text
    assert "<title>first and second · outdo</title>" in text
    assert re.search(r"<noscript><p>.*JavaScript is switched off.*</p></noscript>", text)


def test_a_script_that_would_end_its_element_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bad.js").write_text("const end = '</SCRIPT>';")
    monkeypatch.setattr(module, "STATIC", tmp_path)
    with pytest.raises(AssertionError, match=r"bad\.js would close its own element"):
        module._source("bad.js")


def test_a_notebook_gets_the_page_in_a_frame_of_its_own():
    whole = page([run()])
    ((tag, attributes),) = Elements(notebook(whole, height=700)).found
    assert tag == "iframe"
    assert attributes["srcdoc"] == whole
    assert attributes["height"] == "700"
    assert "allow-same-origin" not in str(attributes["sandbox"])
