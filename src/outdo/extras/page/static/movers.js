// The tokens of a step that moved most, and those that moved most in the wrong direction.
'use strict';

const SHOWN_MOVERS = 10,
  BEFORE = 22, // characters of context
  AFTER = 14;

/** Return whether two tokens share one probability: the same token after the same beginning, in the same group. */
function isSame(step, one, other) {
  const alone = at(step, 'share', one.row.start + one.index) === 1;
  if (alone || one.row.group !== other.row.group || one.index !== other.index) return false;
  if (one.index >= firstEnd(one.row) || one.index >= firstEnd(other.row)) return false;
  for (let index = 0; index <= one.index; index++) {
    if (step.token(one.row, index) !== step.token(other.row, index)) return false;
  }
  return true;
}

/** Return the tokens with the largest moves among those that `counts` accepts, largest first, each once. */
function largestMoves(step, counts) {
  const moved = step.quantity('moved'),
    found = [];
  if (!moved) return found;
  for (const row of step.rows) {
    for (let index = 0; index < row.length; index++) {
      const value = moved[row.start + index],
        mover = { row, index, value, size: Math.abs(value) };
      if (!(mover.size > NOISE) || !counts(row.start + index)) continue;
      if (found.length === SHOWN_MOVERS && mover.size <= found.at(-1).size) continue;
      if (found.some((each) => isSame(step, each, mover))) continue;
      found.push(mover);
      found.sort((a, b) => b.size - a.size);
      if (found.length > SHOWN_MOVERS) found.pop();
    }
  }
  return found;
}

/** Return the tokens before (way −1) or after a token, as many as fit into `room` characters. */
function around(step, row, index, way, room) {
  let text = '';
  for (let k = index + way; k >= 0 && k < row.length; k += way) {
    if (k < shownStart(row) !== index < shownStart(row)) break; // the page does not have the tokens between
    const piece = step.line(step.token(row, k));
    if (text.length + piece.length > room) break;
    text = way < 0 ? piece + text : text + piece;
  }
  return text;
}

function Mover({ step, mover, most, onJump }) {
  const { row, index, value, size } = mover,
    i = row.start + index,
    verdict = verdictOf(row),
    others = likeIt(step, i);
  const [old, now] = ['old', 'new'].map((name) => Math.exp(at(step, name, i) ?? NaN));
  return html`<li><button type="button" onClick=${() => onJump(row, index)}>
    <span class="context"><bdi class="quiet">${around(step, row, index, -1, BEFORE)}</bdi>
      <mark class=${`token ${value < 0 ? 'n5' : 'p5'}`}>${step.line(step.token(row, index))}</mark>
      <bdi class="quiet">${around(step, row, index, 1, AFTER)}</bdi></span>
    <span class=${`size ${value < 0 ? 'down' : 'up'}`}><i style=${{ width: `${(100 * size) / most}%` }}></i></span>
    <span class="number">${signed(value)}</span>
    <span class="change">${percentages(old, now)}</span>
    <span class="quiet origin">group ${step.groups[row.group].number}, rollout ${row.rollout}${' '}
      <span aria-hidden="true">${verdict.glyph}</span><span class="hidden">${verdict.word}</span>${
        others > 0 ? ` and ${others} more` : ''
      } · ${step.push[i] > 0 ? 'pushed up' : step.push[i] < 0 ? 'pushed down' : 'net push 0'}</span>
      </button></li>`;
}

function MoverList({ title, test, step, movers, most, onJump, none }) {
  return html`<section data-test=${test}><h3>${title}</h3>${
    movers.length
      ? html`<ol class="movers">${movers.map((mover) => html`<${Mover} key=${mover.row.start + mover.index} step=${step}
        mover=${mover} most=${most} onJump=${onJump} />`)}</ol>`
      : html`<p class="quiet">${none}</p>`
  }</section>`;
}

function Movers({ step, onJump }) {
  const most = useMemo(() => largestMoves(step, (i) => !(step.state[i] & DIM)), [step]);
  const wrong = useMemo(() => largestMoves(step, (i) => step.state[i] & WRONG), [step]);
  const measured = step.groups.filter((group) => group.measured).length;
  const longest = Math.max(0, ...[...most, ...wrong].map(({ size }) => size)) || 1; // one scale for both lists
  return html`<p class="note"><span class="quiet">Step ${step.number}, ${count(measured, 'measured group')}: the move in
      nats, and the probability before → after. Rollouts with the same beginning share the probability of a token: the
      list shows it once, with "and 2 more". A token moved the wrong way if it moved against the net push.</span></p>
    <div class="pair"><${MoverList} title="Moved most" test="moved-most" step=${step} movers=${most} most=${longest}
      onJump=${onJump} none="No token was measured after this step." />
      <${MoverList} title="Moved the wrong way" test="moved-wrong" step=${step} movers=${wrong} most=${longest}
        onJump=${onJump} none="No measured token moved against its push." /></div>`;
}
