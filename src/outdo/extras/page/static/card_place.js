// In a narrow window the card stands under the line of its token, because there is no room for it beside the tokens.
'use strict';

const narrow = matchMedia('(max-width: 900px)');

/** Put the card under its token, which `activeToken` names. Return what stops following the token. */
function placeUnderToken(card, token) {
  const bench = card?.parentElement,
    pane = bench?.querySelector('.pane');
  if (!pane || !token) return undefined;
  const place = () => {
    const cell = pane.querySelector('.token.active'),
      free = !narrow.matches || !cell;
    const bottom = free ? 0 : [...cell.getClientRects()].at(-1).bottom; // of the last line of a token that is broken
    card.style.top = free ? '' : `${bottom - bench.getBoundingClientRect().top + 6}px`;
    card.classList.toggle('away', !free && !overlaps(cell, pane));
  };
  place();
  if (narrow.matches && token.pinned) card.scrollIntoView({ block: 'nearest' });
  pane.addEventListener('scroll', place, { passive: true });
  addEventListener('resize', place);
  return () => {
    pane.removeEventListener('scroll', place);
    removeEventListener('resize', place);
  };
}

/** Return whether a part of a cell is inside the pane, which scrolls. */
function overlaps(cell, pane) {
  const [inner, outer] = [cell, pane].map((each) => each.getBoundingClientRect());
  return inner.bottom > outer.top && inner.top < outer.bottom;
}
