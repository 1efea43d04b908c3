// The grid of a group's tokens, built without Preact: tens of thousands of elements are too many to compare on every
// change. Rows are filled when they come near the window and emptied when they leave it.
'use strict';

const activeToken = watched(null); // {step, row, index, pinned, byKey} of the token in the card

const MARGIN = '900px'; // how far outside the pane rows are already filled
const MOST_PRINTED = 30_000; // tokens; a printed page has the rows up to here
const CHARACTERS_A_LINE = 115,
  LINE = 23; // pixels; to estimate the height of a row before it is filled

const prototypes = (() => {
  const token = document.createElement('span');
  token.setAttribute('role', 'gridcell');
  token.dataset.test = 'token';
  return { token };
})();

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Classes that do not depend on the colour: a part of a character, and a token before which a line may break. */
const fixedClasses = (shown, piece) => (piece === '' ? ' torn' : '') + (shown.startsWith('·') ? ' gap' : '');

const STATE_CLASSES = Array.from({ length: 16 }, (_, flags) =>
  [
    [REACHED, 'reached'],
    [CLIPPED, 'clipped'],
    [WRONG, 'wrong'],
    [DIM, 'dim'],
  ]
    .filter(([flag]) => flags & flag)
    .map(([, name]) => ` ${name}`)
    .join(''),
);

/** Build the line above a rollout's tokens. */
function rowHead(step, row) {
  const verdict = verdictOf(row),
    move = meanMove(step, row),
    copies = step.groups[row.group].copies.get(row.number),
    whole = row.length + row.omitted,
    parts = Object.entries(row.parts ?? {}),
    calls = Object.entries(row.counts).filter(([name, times]) => name.startsWith(CALLS) && times);
  const shown = (name, value) => element('span', { class: 'fact' }, `${name} `, element('b', {}, value));
  return element(
    'div',
    { class: `head ${verdict.tone}`, role: 'rowheader' },
    element(
      'span',
      { class: 'verdict' },
      element('span', { class: 'glyph', 'aria-hidden': 'true' }, verdict.glyph),
      ` ${verdict.word} `,
      element('b', {}, figure(row.reward)),
    ),
    shown('advantage', signed(row.advantage)),
    shown('mean size of moves', row.measured ? figure(move, 2) : 'not measured'),
    ...(parts.length > 1 ? parts.map(([name, value]) => shown(plainText(name), figure(value))) : []),
    ...calls.map(([name, times]) => shown(oneLine(name.slice(CALLS.length), 40), `× ${times}`)),
    ...(copies > 1 ? [shown('same completion', `× ${copies}`)] : []),
    element('span', { class: 'origin' }, `rollout ${row.rollout} · ${count(whole, 'token')} · ${row.finish}`),
  );
}

class Pane {
  constructor(root) {
    this.root = root;
    this.rows = new Map(); // row number -> {row, element, tokens, made, hits}
    this.near = new IntersectionObserver((entries) => entries.forEach((entry) => this.toggle(entry)), {
      root,
      rootMargin: MARGIN,
    });
    this.printed = () => printing.matches && this.makeAll();
    printing.addEventListener('change', this.printed);
    for (const kind of ['pointerover', 'pointerleave', 'click', 'keydown', 'focusin'])
      root.addEventListener(kind, this);
  }

  handleEvent(event) {
    if (event.type === 'keydown') return this.onKey(event);
    if (event.type === 'pointerleave') return this.leave();
    const fold = event.type === 'click' && event.target.closest?.('.fold');
    if (fold) return this.fold(Number(fold.dataset.row), Number(fold.dataset.part));
    const token = event.target.closest?.('[data-index]');
    if (!token) return undefined;
    const place = { row: Number(token.dataset.row), index: Number(token.dataset.index) };
    if (event.type === 'click') return this.focus(place.row, place.index, { pinned: true });
    if (event.type === 'pointerover' && event.pointerType !== 'touch') return this.point(place, { byKey: false });
    if (event.type === 'focusin') this.point(place, { byKey: true });
    return undefined;
  }

  /** Show rows of a step in the given order. */
  show({ step, rows, scale, filter, plain, folded, onPlace }) {
    this.near.disconnect();
    Object.assign(this, { step, scale, plain, folded, onPlace, order: rows.map((row) => row.number) });
    this.rows.clear();
    this.root.replaceChildren(...rows.map((row, i) => this.emptyRow(row, i, filter)));
    this.root.setAttribute('aria-rowcount', rows.length);
    const current = activeToken.get();
    const here = current && current.step === step && this.rows.has(current.row);
    this.at = here
      ? { row: current.row, index: current.index }
      : rows.length
        ? { row: rows[0].number, index: 0 }
        : null;
    for (const { element: made } of this.rows.values()) this.near.observe(made);
  }

  emptyRow(row, i, filter) {
    const tokens = element('div', { class: 'tokens', role: 'presentation' });
    const lines = Math.ceil(this.step.text(row.number).length / CHARACTERS_A_LINE);
    tokens.style.minHeight = `${lines * LINE}px`;
    const made = element(
      'div',
      { class: 'rollout', role: 'row', 'data-test': 'rollout', 'data-row': row.number, 'aria-rowindex': i + 1 },
      rowHead(this.step, row),
      tokens,
    );
    const hits = hitsOf(this.step, row, filter),
      parts = partsOf(row);
    const hit = ({ from, to }) => [...hits].some((index) => from <= index && index < to);
    const isLong = ({ byPolicy, size }) => !byPolicy && (this.folded || size > LONG_RESULT);
    const closed = new Set(parts.filter((part) => isLong(part) && !hit(part)).map(({ number }) => number));
    this.rows.set(row.number, { row, element: made, tokens, cells: [], made: false, hits, parts, closed });
    return made;
  }

  toggle({ target, isIntersecting }) {
    const held = this.rows.get(Number(target.dataset.row));
    if (!held || held.element !== target) return;
    if (isIntersecting) this.make(held);
    else if (held.made && this.at?.row !== held.row.number) this.unmake(held);
  }

  make(held) {
    if (held.made) return;
    const { row } = held,
      cells = [];
    for (let index = 0; index < row.length; index++) {
      const cell = prototypes.token.cloneNode(),
        vocab = this.step.token(row, index);
      cell.dataset.row = row.number;
      cell.dataset.index = index;
      cell.className = this.classOf(held, index);
      cell.textContent = this.plain ? plainText(this.step.piece(vocab)[1]) : this.step.shown(vocab);
      if (row.omitted && index === shownStart(row)) cell.dataset.omitted = `… ${count(row.omitted, 'token')} …`;
      cells.push(cell);
    }
    const isClosed = ({ number }) => held.closed.has(number);
    held.cells = cells;
    held.tokens.replaceChildren(
      ...(held.parts.length ? partElements(this.step, row, held.parts, cells, isClosed) : cells),
    );
    held.tokens.style.minHeight = '';
    held.made = true;
    if (this.at?.row === row.number) cells[this.at.index]?.setAttribute('tabindex', '0');
  }

  /** Fill the rows for a printed page, as far as it is of use: the first of them. */
  makeAll() {
    let tokens = 0;
    for (const held of this.rows.values()) {
      tokens += held.row.length;
      if (tokens <= MOST_PRINTED) this.make(held);
    }
  }

  unmake(held) {
    held.tokens.style.minHeight = `${held.tokens.offsetHeight}px`;
    held.tokens.replaceChildren();
    held.cells = [];
    held.made = false;
  }

  classOf({ row, hits }, index) {
    const at = row.start + index,
      vocab = this.step.token(row, index);
    if (this.plain) return `token plain${hits.has(index) ? ' hit' : ''}`;
    const level = this.scale.values ? levelOf(this.scale, this.scale.values[at]) : 'unknown';
    const fixed = fixedClasses(this.step.shown(vocab), this.step.piece(vocab)[1]);
    return `token ${level}${STATE_CLASSES[this.step.state[at]]}${fixed}${hits.has(index) ? ' hit' : ''}`;
  }

  recolour(scale) {
    this.scale = scale;
    for (const held of this.rows.values()) {
      if (!held.made) continue;
      let index = 0;
      for (const cell of held.cells) cell.className = this.classOf(held, index++);
    }
    this.mark();
  }

  cell({ row, index }) {
    return this.rows.get(row)?.cells[index];
  }

  /** Fold a part of an episode, or open it if it is folded. */
  fold(row, number) {
    const held = this.rows.get(row),
      folded = !held.closed.has(number);
    held.closed[folded ? 'add' : 'delete'](number);
    foldPart(held.tokens.querySelector(`[data-part="${number}"]`), folded);
  }

  /** Return the folded part that a token is in. */
  closedPart({ parts, closed }, index) {
    return parts.find(({ number, from, to }) => closed.has(number) && from <= index && index < to);
  }

  /** Focus a token. Tab reaches exactly one token: the last one that had the focus. */
  focus(row, index, { pinned = activeToken.get()?.pinned ?? false, centred = false } = {}) {
    const held = this.rows.get(row);
    if (!held) return;
    this.cell(this.at ?? {})?.removeAttribute('tabindex');
    this.at = { row, index: Math.max(0, Math.min(index, held.row.length - 1)) };
    this.make(held);
    const closed = this.closedPart(held, this.at.index);
    if (closed) this.fold(row, closed.number);
    const cell = this.cell(this.at);
    if (!cell) return;
    cell.setAttribute('tabindex', '0');
    cell.focus({ preventScroll: true });
    cell.scrollIntoView({ block: centred ? 'center' : 'nearest' });
    this.point(this.at, { byKey: true, pinned, force: true });
    this.onPlace?.(held.row, this.at.index);
  }

  /** Show a token in the card. The card follows the pointer unless a token is pinned. */
  point(place, { byKey, pinned, force }) {
    const current = activeToken.get();
    if (current?.pinned && !byKey && !force) return;
    const keeps = current?.row === place.row && current?.index === place.index && current.pinned;
    activeToken.set({ step: this.step, ...place, byKey, pinned: pinned ?? keeps ?? false });
    this.mark();
  }

  /** When the pointer leaves, show the token that has the focus again, if there is one. */
  leave() {
    if (!activeToken.get() || activeToken.get().pinned) return;
    const focused = document.activeElement?.closest?.('[data-index]');
    if (focused && this.root.contains(focused)) this.point(this.at, { byKey: true });
  }

  mark() {
    for (const old of this.root.querySelectorAll('.active')) old.classList.remove('active', 'pinned');
    const current = activeToken.get();
    if (current?.step !== this.step) return;
    this.cell(current)?.classList.add('active', ...(current.pinned ? ['pinned'] : []));
  }

  onKey(event) {
    if (!this.at || event.altKey || event.ctrlKey || event.metaKey || !event.target.closest('[data-index]')) return;
    const { row, index } = this.at,
      place = this.order.indexOf(row),
      held = this.rows.get(row),
      length = held.row.length;
    const after = this.closedPart(held, index + 1)?.to ?? index + 1; // beyond a folded part
    const before = (this.closedPart(held, index - 1)?.from ?? index) - 1;
    const to = {
      ArrowRight: () => (after < length ? [row, after] : [this.order[place + 1], 0]),
      ArrowLeft: () => (before >= 0 ? [row, before] : [this.order[place - 1], Infinity]),
      ArrowDown: () => [this.order[place + 1], index],
      ArrowUp: () => [this.order[place - 1], index],
      Home: () => [row, 0],
      End: () => [row, Infinity],
    }[event.key];
    if (to) this.focus(...to());
    else if (event.key === 'Enter')
      this.point(this.at, { byKey: true, pinned: !activeToken.get()?.pinned, force: true });
    else if (event.key === 'Escape') closeCard(this);
    else return;
    event.preventDefault();
  }

  close() {
    this.near.disconnect();
    printing.removeEventListener('change', this.printed);
    this.root.replaceChildren();
  }
}

function closeCard(pane) {
  activeToken.set(null);
  pane?.mark();
}
