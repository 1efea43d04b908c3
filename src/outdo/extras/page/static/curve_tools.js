// What a reader does with the curves: search, logarithmic axes, all values as CSV, one curve enlarged.
'use strict';

const ZOOMED = 420; // pixels: the height of an enlarged curve
const MOST_ROWS = 2_000; // of the table below it

/** Return whether a metric's name or title contains the search text. */
const isSought = (metric, words, text) =>
  `${metric} ${words[metric]?.title ?? ''}`.toLowerCase().includes(text.trim().toLowerCase());

/** Return all metrics as CSV: a line per run and step, a column per metric, and one per known sample size. */
function metricsCsv(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))].sort();
  const columns = names.flatMap((mean) => {
    const size = (run) => run.words[mean]?.n,
      sized = runs.some((run) => run.metrics.values[size(run)]);
    return [{ title: mean, mean, of: () => mean }, ...(sized ? [{ title: `${mean}_n`, mean, of: size }] : [])];
  });
  const lines = runs.flatMap((run) =>
    run.metrics.steps.map((step, i) => {
      const at = (metric) => run.metrics.values[metric]?.[i];
      return [run.name, step, ...columns.map(({ mean, of }) => (known(at(mean)) ? at(of(run)) : null))];
    }),
  );
  return [['run', 'step', ...columns.map(({ title }) => title)], ...lines]
    .map((line) => line.map(cell).join(','))
    .join('\r\n');
}

function CurveTools({ runs, search, setSearch, log, setLog, matching, seeds, apart, setApart }) {
  return html`<form class="search" role="search" aria-label="Search metrics"
    onSubmit=${(event) => event.preventDefault()}>
    <label class="control wide"><span>Search metrics</span><input type="search" data-test="search-metrics"
      value=${search} onInput=${(event) => setSearch(event.target.value)} spellcheck="false" /></label>
    <label class="control"><input type="checkbox" data-test="log-scale" checked=${log}
      onChange=${(event) => setLog(event.target.checked)} /><span>Logarithmic axes</span></label>
    ${seeds && html`<label class="control"><input type="checkbox" data-test="apart" checked=${apart}
      onChange=${(event) => setApart(event.target.checked)} /><span>Each seed as its own line</span></label>`}
    <button type="button" data-test="metrics-csv"
      onClick=${() => save(metricsCsv(runs), 'metrics.csv')}>Save as CSV</button>
    <output>${search && count(matching, 'metric')}</output></form>`;
}

/** List the values of the lines, with the sample size and the ends of the interval where they are known. */
function Values({ lines, metric }) {
  const rows = lines.flatMap((line) => {
    const { low, high, n } = boundsOf(line, metric);
    const row = (step, i) => ({
      line, step, value: line.metrics.values[metric]?.[i], n: n?.[i], low: low?.[i], high: high?.[i],
    });
    return line.metrics.steps.map(row).filter(({ value }) => known(value));
  });
  const kept = [
    ['n', lines.some((line) => line.spread) ? 'Runs' : 'n'],
    ['low', lines.some((line) => line.spread) ? 'Min' : '95\u00a0% from'],
    ['high', lines.some((line) => line.spread) ? 'Max' : 'to'],
  ].filter(([name]) => rows.some((row) => known(row[name])));
  return html`<div class="scroller" tabindex="0" role="region" aria-label="Values">
    <table><thead><tr>${lines.length > 1 && html`<th scope="col">Run</th>`}<th scope="col" class="number">Step</th>
      <th scope="col" class="number">Value</th>
      ${kept.map(([, title]) => html`<th scope="col" class="number">${title}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, MOST_ROWS).map((row) => html`<tr>
      ${lines.length > 1 && html`<td><bdi>${plainText(row.line.name)}</bdi></td>`}<td class="number">${row.step}</td>
      <td class="number">${figure(row.value, 6)}</td>
      ${kept.map(([name]) => html`<td class="number">${figure(row[name], 6)}</td>`)}</tr>`)}</tbody></table>
    ${rows.length > MOST_ROWS &&
      html`<p class="quiet">The CSV file has all ${count(rows.length, 'value')}.</p>`}</div>`;
}

/** Show one curve large: dragging selects a range of steps, a double click shows all again; below it, its values. */
function Enlarged({ lines, metric, words, log, live, onClose }) {
  const dialog = useRef(null),
    readout = useRef(null);
  const form = formOf(metric);
  useLayoutEffect(() => dialog.current.showModal(), []);
  const onCursor = useCallback((index, table) => {
    if (!readout.current) return;
    if (known(index)) showReadings(readout.current, readingsAt(lines, table, index, form), table[0][index]);
    else showReadings(readout.current, []);
  }, []);
  return html`<dialog class="enlarged" ref=${dialog} data-test="enlarged" aria-label=${words?.title ?? metric}
    onClose=${onClose}>
    <div class="list-head"><h3>${words?.title ?? metric} <code>${metric}</code></h3>
      <output ref=${readout}></output>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
    <${Plot} lines=${lines} metric=${metric} height=${ZOOMED} log=${log} live=${live} zoom=${true}
      onCursor=${onCursor} />
    <p class="quiet">Drag to select a range of steps; double-click to show all.</p>
    <details><summary>Values as a table</summary><${Values} lines=${lines} metric=${metric} /></details></dialog>`;
}
