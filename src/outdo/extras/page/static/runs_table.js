// Several runs at a glance: first the settings that differ, then how each run began and ended.
'use strict';

/** Say which settings differ, with their values. */
function Differences({ runs }) {
  const names = Object.keys(runs[0].differs ?? {}),
    values = (name) => [...new Set(runs.map((run) => run.differs[name]))];
  if (!names.length)
    return html`<p class="lead" data-test="differences">${
      runs[0].compared ? 'All settings of the runs are the same.' : 'The settings of a run are not known.'}</p>`;
  return html`<p class="lead" data-test="differences">The runs differ in ${names.map(
    (name, i) => html`${i > 0 && '; '}<b>${name}</b> <span class="quiet">(<bdi>${
      values(name).map((value) => oneLine(value, 40)).join(', ')}</bdi>)</span>`,
  )}${runs[0].hidden > 0 && ` and in ${count(runs[0].hidden, 'more setting')}`}.</p>`;
}

/** Return a cell with the first and the last value of an evaluation and the interval of the last. */
function EvaluationCell({ run, metric }) {
  const ends = evaluated(run, metric),
    form = isAccuracy(metric) ? percent : figure;
  if (!ends) return html`<td class="number quiet">${UNKNOWN}</td>`;
  const { first, last } = ends,
    interval = known(last.low) && known(last.high) && ` (${form(last.low)} to ${form(last.high)})`;
  return html`<td class="number">${form(first.value)} → <b>${form(last.value)}</b>
    <span class="quiet">${interval}</span></td>`;
}

function RunRow({ run, ink, names, evaluations }) {
  const [metric] = evaluations[0] ?? [],
    ends = metric && evaluated(run, metric),
    reward = ofAllSampled(run, 'reward'),
    moved = movedAsPushed(run);
  return html`<tr data-test="run-row"><th scope="row"><${Stroke} i=${ink} /><bdi>${plainText(run.name)}</bdi></th>
    ${names.map((name) => html`<td><bdi>${oneLine(run.differs[name], 30)}</bdi></td>`)}
    <td>${run.state}</td>
    ${evaluations.length > 0 && html`<td>${ends ? answerOf(metric, ends).replace('.', '') : UNKNOWN}</td>`}
    ${evaluations.map(([each]) => html`<${EvaluationCell} run=${run} metric=${each} />`)}
    <td class="number">${reward ? `${figure(reward[0])} → ${figure(reward[1])}` : UNKNOWN}</td>
    <td class="number">${moved ? percent(moved.share) : UNKNOWN}</td></tr>`;
}

/** Show the runs in a table, and below it what all of them have in common. */
function RunsTable({ runs, lines }) {
  const names = Object.keys(runs[0].differs ?? {}),
    evaluations = evaluationsOf(runs);
  const common = runs[0].about.filter(([label, value]) =>
    runs.every((run) => run.about.some(([other, theirs]) => other === label && theirs === value)),
  );
  return html`<section class="about runs" aria-labelledby="runs-title">
    <p class="run-title" id="runs-title">${count(runs.length, 'run')}</p>
    <${Differences} runs=${runs} />
    <div class="scroller" tabindex="0" role="region" aria-label="The runs"><table class="static" data-test="runs">
      <thead><tr><th scope="col">Run</th>${names.map((name) => html`<th scope="col">${name}</th>`)}
        <th scope="col">State</th>${evaluations.length > 0 && html`<th scope="col">Did it help?</th>`}
        ${evaluations.map(([, title, detail]) => html`<th scope="col" class="number">${title}, ${detail}</th>`)}
        <th scope="col" class="number">Mean reward</th>
        <th scope="col" class="number">Moved as intended</th></tr></thead>
      <tbody>${runs.map((run) => html`<${RunRow} run=${run} ink=${inkAmong(lines, run)} names=${names}
        evaluations=${evaluations} />`)}</tbody></table></div>
    <p class="quiet note">Held-out results before the first step → after the last, with the 95\u00a0% interval of the
      last. Mean reward: in training, the first and the last fifth of the steps, three to ten of them.</p>
    <dl class="minor">${common.map(fact)}</dl></section>`;
}
