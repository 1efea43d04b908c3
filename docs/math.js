// Equations: KaTeX draws each block of TeX, with MathML for screen readers. A wide one scrolls by keyboard too.
for (const block of document.querySelectorAll("div.math")) {
  katex.render(block.textContent, block, { displayMode: true });
  block.tabIndex = 0;
}
