// A table that is wider than the page scrolls: the keyboard must be able to reach it.
const reachable = () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) wrap.tabIndex = 0;
};
new MutationObserver(reachable).observe(document.documentElement, { childList: true, subtree: true });
reachable();
