// The held-out questions whose answers became right or wrong between the first and the last evaluation.
'use strict';

const CHANGES = {
  fixed: ['▲', 'became right', 'got a better reward'],
  broken: ['▼', 'became wrong', 'got a worse reward'],
};
const ENDING = 60; // characters: the answer stands at the end of a completion

const probabilityOf = (p) => (p < 0.0001 ? 'p < 0.0001' : `p = ${figure(p, 2)}`);

function ChangedAnswer({ answer, by }) {
  const [glyph, ...words] = CHANGES[answer.change],
    word = words[by === 'right' ? 0 : 1];
  const text = (title, content, reward) => html`<div><h4>${title}${known(reward) && by === 'reward' &&
    html` <span class="quiet">reward ${figure(reward)}</span>`}</h4><pre><bdi>${plainText(content)}</bdi></pre></div>`;
  return html`<details class=${`changed ${answer.change}`} data-test="held-out-answer"><summary>
      <span aria-hidden="true">${glyph}</span> <span class="hidden">${word}: </span>
      <bdi>${oneLine(answer.prompt, 90)}</bdi>${' '}
      <span class="quiet">${oneLine(answer.before.slice(-ENDING), 30)} →
        ${' '}${oneLine(answer.after.slice(-ENDING), 30)}</span></summary>
    <div class="pair">${text('Before', answer.before, answer.rewards[0])}
      ${text('After', answer.after, answer.rewards[1])}</div>
    <p class="quiet">Expected: <bdi>${oneLine(answer.answer, 300)}</bdi></p></details>`;
}

function HeldOut({ run, runs }) {
  const found = run.held_out,
    [shown, setShown] = useState(6);
  if (!found || !found.questions) return null;
  const id = `held-out-${runs.indexOf(run)}`,
    [up, down] = ['fixed', 'broken'].map((change) => CHANGES[change][found.by === 'right' ? 1 : 2]);
  const decided = found.p < 0.05 ? 'The change is hardly chance' : 'The change can be chance';
  return html`<section class="held-out" data-test="held-out" aria-labelledby=${id}>
    <h3 id=${id}>Held-out answers ${when({ step: found.first })} and ${when({ step: found.last })}${
      runs.length > 1 && html`: <bdi>${plainText(run.name)}</bdi>`}</h3>
    <p class="note">Of ${count(found.questions, 'question')}, <b>${found.fixed}</b> ${up},
      ${' '}<b>${found.broken}</b> ${down},
      ${' '}${found.unchanged} did not change. <span class="quiet">${decided}: ${probabilityOf(found.p)}
      ${' '}(McNemar's exact test, n = ${found.fixed + found.broken} changed).</span></p>
    ${found.shown.slice(0, shown).map((answer) => html`<${ChangedAnswer} key=${answer.change + answer.id}
      answer=${answer} by=${found.by} />`)}
    ${shown < found.shown.length && html`<button type="button" class="plain"
      onClick=${() => setShown(found.shown.length)}>
      Show all ${found.shown.length} changed answers</button>`}</section>`;
}
