// The same text under two checkpoints.
'use strict';

const STRIP_TOKENS = 400; // a strip is for reading side by side; the pane above has the whole rollout

function totals(step, row) {
  const sum = (name) =>
    step
      .column(name)
      .subarray(row.start, row.start + row.length)
      .reduce((total, value) => total + (value || 0), 0);
  const a = sum('a'),
    b = sum('b');
  return { row, a, b, difference: b - a, each: row.length ? (b - a) / row.length : 0 };
}

function Strip({ title, step, row, scale, values }) {
  const length = Math.min(row.length, STRIP_TOKENS);
  return html`<div class="strip"><h3>${title}</h3><p class="tokens" tabindex="0" role="region"
    aria-label=${title}>${Array.from(
    { length },
    (_, index) => {
      const [, piece] = step.piece(step.token(row, index)),
        shown = step.shown(step.token(row, index));
      return html`<span
        class=${`token ${levelOf(scale, values[row.start + index])}${fixedClasses(shown, piece)}`}>${shown}</span>`;
    },
  )}
    ${row.length > length &&
      html`<span class="quiet"> … ${count(row.length - length, 'token')} more in the pane above</span>`}</p></div>`;
}

function Compared({ step, group, compared, onJump, setBy }) {
  const rows = useMemo(() => group.rows.map((row) => totals(step, row)).sort((x, y) => y.each - x.each), [step, group]);
  const [number, setNumber] = useState(rows[0]?.row.number);
  const chosen = rows.find(({ row }) => row.number === number) ?? rows[0];
  const a = useMemo(() => step.column('a').map((value) => -value), [step]),
    b = useMemo(() => step.column('b').map((value) => -value), [step]);
  const difference = useMemo(() => scaleOf(step, 'difference'), [step]);
  const surprise = useMemo(() => scaleOf(step, 'surprise'), [step]);
  const name = (row) => `rollout ${row.rollout} ${verdictOf(row).glyph}`;
  return html`<div data-test="compare"><p class="note">
      <b>a</b> is <code>${compared.a}</code>, <b>b</b> is <code>${compared.b}</code>.
      <span class="quiet"> Both score the recorded rollouts of step ${step.number}; nothing was sampled again.</span>
      <button type="button" class="plain"
        onClick=${() => setBy('difference')}>Colour the tokens above by b − a</button></p>
    <div class="scroller" tabindex="0" role="region" aria-label="Rollouts under both checkpoints">
      <table class="compared">
      <thead><tr><th scope="col">Rollout</th><th scope="col" class="number">Reward</th>
        <th scope="col" class="number">Under a</th><th scope="col" class="number">Under b</th>
        <th scope="col" class="number">b − a</th><th scope="col" class="number">Per token</th></tr></thead>
      <tbody>${rows.map(
        (each) => html`<tr class=${each === chosen ? 'open' : ''} onClick=${() => setNumber(each.row.number)}>
        <th scope="row"><button type="button" class="plain" aria-pressed=${String(each === chosen)}>${name(each.row)}
          </button></th><td class="number">${figure(each.row.reward)}</td>
        <td class="number">${figure(each.a, 4)}</td><td class="number">${figure(each.b, 4)}</td>
          <td class="number">${signed(each.difference, 4)}</td><td class="number">${signed(each.each)}</td></tr>`,
      )}</tbody></table></div>
    ${
      chosen &&
      html`<div class="strips"><${Strip} title=${`Surprise under a, ${compared.a}`} step=${step} row=${chosen.row}
        scale=${surprise} values=${a} />
      <${Strip} title=${`Surprise under b, ${compared.b}`} step=${step} row=${chosen.row} scale=${surprise}
        values=${b} />
      <${Strip} title=${`b − a: ${difference.ends.join(', ')}`} step=${step} row=${chosen.row} scale=${difference}
        values=${difference.values} /></div>
      <button type="button" class="plain"
        onClick=${() => onJump(chosen.row, 0)}>Show ${name(chosen.row)} in the pane above</button>`
    }</div>`;
}
