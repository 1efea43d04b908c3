// Keep the reader's position in the address, so that a link opens the same place.
'use strict';

const LINKED = ['run', 'step', 'group', 'rollout', 'token', 'by'];

function readLink() {
  const found = new URLSearchParams(location.hash.slice(1));
  const place = {};
  for (const name of LINKED) {
    const text = found.get(name);
    if (text === null) continue;
    if (name === 'by') place.by = text;
    else if (/^\d+$/.test(text)) place[name] = Number(text);
  }
  return place;
}

function writeLink(place) {
  const hash = new URLSearchParams(LINKED.filter((name) => known(place[name])).map((name) => [name, place[name]]));
  if (`#${hash}` === location.hash) return;
  try {
    history.replaceState(null, '', `#${hash}`);
  } catch {
    // The frame of a notebook does not allow this; then the page has no link to share.
  }
}
