// What a reader does with the curves: search, logarithmic axes, all values as CSV, one curve enlarged.
'use strict';

const ZOOMED = 420; // pixels: the height of an enlarged curve
const MOST_ROWS = 2_000; // of the table below it

/** Return whether a metric's name or title contains the search text. */
const isSought = (metric, words, text) =>
  `${metric} ${words[metric]?.title ?? ''}`.toLowerCase().includes(text.trim().toLowerCase());

/** Return all metrics of the runs as CSV: a line per run and step, a column per metric. */
function metricsCsv(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))].sort();
  const lines = runs.flatMap((run) =>
    run.metrics.steps.map((step, i) => [run.name, step, ...names.map((name) => run.metrics.values[name]?.[i])]),
  );
  return [['run', 'step', ...names], ...lines].map((line) => line.map(cell).join(',')).join('\r\n');
}

function CurveTools({ runs, search, setSearch, log, setLog, matching }) {
  return html`<form class="search" role="search" aria-label="Search metrics"
    onSubmit=${(event) => event.preventDefault()}>
    <label class="control wide"><span>Search metrics</span><input type="search" data-test="search-metrics"
      value=${search} onInput=${(event) => setSearch(event.target.value)} spellcheck="false" /></label>
    <label class="control"><input type="checkbox" data-test="log-scale" checked=${log}
      onChange=${(event) => setLog(event.target.checked)} /><span>Logarithmic axes</span></label>
    <button type="button" data-test="metrics-csv"
      onClick=${() => save(metricsCsv(runs), 'metrics.csv')}>Save as CSV</button>
    <output>${search && count(matching, 'metric')}</output></form>`;
}

/** Show one curve large: dragging selects a range of steps, a double click shows all again; below it, its values. */
function Enlarged({ runs, metric, words, log, live, onClose }) {
  const dialog = useRef(null),
    readout = useRef(null);
  const form = formOf(metric);
  useLayoutEffect(() => dialog.current.showModal(), []);
  const onCursor = useCallback((index, table) => {
    if (!readout.current) return;
    const values = known(index) && readingsAt(table, index, form).join('  ·  ');
    readout.current.textContent = values ? `${values}   at ${table[0][index]}` : '';
  }, []);
  const rows = runs
    .flatMap((run) => run.metrics.steps.map((step, i) => [run, step, run.metrics.values[metric]?.[i]]))
    .filter(([, , value]) => known(value));
  return html`<dialog class="enlarged" ref=${dialog} data-test="enlarged" aria-label=${words?.title ?? metric}
    onClose=${onClose}>
    <div class="list-head"><h3>${words?.title ?? metric} <code>${metric}</code></h3>
      <output ref=${readout}></output>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
    <${Plot} runs=${runs} metric=${metric} height=${ZOOMED} log=${log} live=${live} zoom=${true} onCursor=${onCursor} />
    <p class="quiet">Drag to select a range of steps; double-click to show all.</p>
    <details><summary>Values as a table</summary><div class="scroller" tabindex="0" role="region" aria-label="Values">
      <table><thead><tr>${runs.length > 1 && html`<th scope="col">Run</th>`}<th scope="col" class="number">Step</th>
        <th scope="col" class="number">Value</th></tr></thead>
      <tbody>${rows.slice(0, MOST_ROWS).map(([run, step, value]) => html`<tr>
        ${runs.length > 1 && html`<td><bdi>${plainText(run.name)}</bdi></td>`}<td class="number">${step}</td>
        <td class="number">${figure(value, 6)}</td></tr>`)}</tbody></table>
      ${rows.length > MOST_ROWS && html`<p class="quiet">The CSV file has all ${count(rows.length, 'value')}.</p>`}
      </div></details></dialog>`;
}
