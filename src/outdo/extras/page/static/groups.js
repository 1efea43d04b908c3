// The list of a step's groups: "In which groups do rewards differ?"
'use strict';

const byNumber =
  (of, down = true) =>
  (a, b) =>
    down ? (of(b) ?? -Infinity) - (of(a) ?? -Infinity) : (of(a) ?? Infinity) - (of(b) ?? Infinity);
const spread = ({ scored }) => {
  const rewards = scored.map((row) => row.reward);
  return rewards.length ? Math.max(...rewards) - Math.min(...rewards) : null;
};
const GROUP_ORDERS = {
  number: ['number', byNumber((group) => group.number, false)],
  signal: ['largest spread of rewards', (a, b) => b.signal - a.signal || byNumber(spread)(a, b)],
  best: ['highest mean reward', byNumber((group) => group.mean)],
  worst: ['lowest mean reward', byNumber((group) => group.mean, false)],
  moved: ['highest share moved as intended', byNumber((group) => group.moved)],
  unmoved: ['lowest share moved as intended', byNumber((group) => group.moved, false)],
  prompt: ['prompt', (a, b) => a.promptText.localeCompare(b.promptText)],
};

/** Draw a group's rewards as a row of bars, highest first: hollow if wrong, filled if right or without a verdict. */
function Rewards({ group }) {
  const rows = [...group.rows].sort(byNumber((row) => row.reward));
  const values = group.scored.map((row) => row.reward),
    low = Math.min(0, ...values),
    high = Math.max(1, ...values);
  const width = rows.length > 24 ? 3 : 6,
    height = 16;
  const judged = group.scored.filter((row) => row.right !== null).length,
    right = group.scored.filter((row) => row.right).length;
  return html`<svg class="rewards" width=${rows.length * width} height=${height} role="img"
    aria-label=${judged ? `${OUTCOME_WORDS[group.outcome]}: ${right} right of ${judged}`
      : `${OUTCOME_WORDS[group.outcome]}: mean ${figure(group.mean)}`}>
    ${rows.map((row, i) => {
      if (row.reward === null) return html`<path class="unscored" d=${`M${i * width} ${height - 1}h${width - 1}`} />`;
      const size = Math.max(4, ((row.reward - low) / (high - low)) * (height - 1));
      return html`<rect class=${row.right === false ? 'wrong' : 'right'} x=${i * width + 0.5} y=${height - size}
        width=${width - 2} height=${size - 0.5} />`;
    })}</svg>`;
}

function GroupRow({ group, open, reachable, onOpen }) {
  const glyph = { right: '●', wrong: '○', mixed: '◐', differ: '◐', equal: '○', unscored: '–' }[group.outcome];
  return html`<tr data-test="group-row" data-group=${group.number} class=${open ? 'open' : ''}
    onClick=${() => onOpen(group.index)}>
    <td class="number">${group.number}</td>
    <th scope="row"><button type="button" class="plain" aria-pressed=${String(open)}
      tabindex=${reachable ? '0' : '-1'}>
      <bdi>${group.question === group.promptText ? '' : '…'}${oneLine(group.question, 110)}</bdi></button></th>
    <td class="answer"><bdi>${group.answer === null ? '' : oneLine(group.answer, 40)}</bdi></td>
    <td class="bars"><${Rewards} group=${group} /></td>
    <td class="outcome"><span aria-hidden="true">${glyph}</span> ${OUTCOME_WORDS[group.outcome]}</td>
    <td class="number" data-label="mean reward">${figure(group.mean)}</td>
    <td class="number" data-label="moved as intended">
      ${group.measured ? percent(group.moved) : html`<span class="quiet">not measured</span>`}</td>
  </tr>`;
}

/** The list is one Tab stop; the arrow keys move within it, and Enter opens a group. */
function onArrows(event) {
  const buttons = [...event.currentTarget.querySelectorAll('tbody button')],
    here = buttons.indexOf(event.target.closest('button'));
  const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (here < 0 || to === undefined) return;
  event.preventDefault();
  buttons[to]?.focus();
}

/** Return the groups that have a shown row, in the chosen order. */
function visibleGroups(step, shown, order) {
  const visible = step.groups.filter((group) => group.rows.some((row) => shown.has(row.number)));
  return visible.sort(GROUP_ORDERS[order][1]);
}

function GroupList({ step, groups, order, setOrder, open, onOpen }) {
  const of = (outcome) => step.groups.filter((group) => group.outcome === outcome).length;
  const signal = step.groups.filter((group) => group.signal).length;
  const outcomes = Object.keys(OUTCOME_WORDS).filter(of).map((outcome) => `${of(outcome)} ${OUTCOME_WORDS[outcome]}`);
  const reachable = groups.find((group) => group.index === open) ?? groups[0];
  return html`<div class="list-head"><p class="note">Rewards differ in <b>${signal}</b> of
      ${count(step.groups.length, 'group')} (${outcomes.join(', ')}).
      <span class="quiet">${step.groups.length < step.groupsInAll
        ? ` The page has ${step.groups.length} of ${count(step.groupsInAll, 'group')}.`
        : ''} With an advantage that compares the rewards of the answers, equal rewards give none.
        "Moved as intended": the share of the pushed tokens that moved in the direction of the push, weighted by how
        far the pushes could move them.</span></p>
    <label class="control"><span>Sort by</span><select data-test="sort-groups" value=${order}
      onChange=${(event) => setOrder(event.target.value)}>
      ${Object.entries(GROUP_ORDERS).map(([name, [title]]) => html`<option value=${name}
        selected=${name === order}>${title}</option>`)}</select></label></div>
    <div class="scroller groups" tabindex="0" role="region" aria-label="Groups of this step"
      onKeyDown=${onArrows}><table>
      <thead><tr><th scope="col" class="number">No.</th><th scope="col">Prompt</th><th scope="col">Expected</th>
        <th scope="col">Rewards</th><th scope="col">Outcome</th>
        <th scope="col" class="number">Mean reward</th>
        <th scope="col" class="number">Moved as intended</th></tr></thead>
      <tbody>${groups.map((group) => html`<${GroupRow} key=${group.index} group=${group} open=${group.index === open}
        reachable=${group === reachable}
        onOpen=${onOpen} />`)}</tbody></table>
      ${!groups.length && html`<p class="quiet empty">No group has a matching rollout.</p>`}</div>`;
}
