// The curves of "Did training help?": one small curve per metric, with a common cursor.
'use strict';

const OPEN_TOPICS = new Set(['outcome', 'data', 'tokens']);

function Curve({ lines, metric, words, large, log, chosen, at, range, onStep }) {
  const readout = useRef(null),
    live = useRef(null);
  const [enlarged, setEnlarged] = useState(false);
  live.current = { chosen, at, range, onStep };
  const form = formOf(metric);
  const resting = lines.map((line) => {
    const ends = summary(line, metric);
    const text = !ends ? UNKNOWN : lines.length > 2 ? form(ends[1]) : `${form(ends[0])} → ${form(ends[1])}`;
    return { line, text };
  });
  const kept = useRef(null);
  kept.current = resting;
  const rested = JSON.stringify(resting.map(({ line, text }) => [line.ink, text]));
  useLayoutEffect(() => showReadings(readout.current, resting), [rested]);
  const onCursor = useCallback(
    (index, table) => {
      if (!readout.current) return;
      if (known(index)) showReadings(readout.current, readingsAt(lines, table, index, form), table[0][index]);
      else showReadings(readout.current, kept.current);
    },
    [lines],
  );
  const better =
    words?.better &&
    html`<span class="better"
      title=${`${words.better === 'up' ? 'Higher' : 'Lower'} is better`}>
      ${words.better === 'up' ? '↑' : '↓'}</span>`;
  return html`<figure class=${`curve ${large ? 'large' : ''}`} data-test="curve" data-metric=${metric}>
    <figcaption><${Explained} words=${words} metric=${metric} />${better}
      <button type="button" class="plain enlarge" data-test="enlarge" aria-label=${`Enlarge ${words?.title ?? metric}`}
        onClick=${() => setEnlarged(true)}>⤢</button>
      <div class="readings"><${Role} metric=${metric} runs=${runsOf(lines)} />
        <output ref=${readout}></output></div></figcaption>
    <${Plot} lines=${lines} metric=${metric} height=${large ? 150 : 92} live=${live} log=${log} onCursor=${onCursor} />
    ${enlarged && html`<${Enlarged} lines=${lines} metric=${metric} words=${words} log=${log} live=${live}
      onClose=${() => setEnlarged(false)} />`}
  </figure>`;
}

/** Show the title of a metric, and its glossary entry when the title is pointed at or focused. */
function Explained({ words, metric }) {
  const id = `what-${metric.replace(/[^\w]/g, '-')}`;
  const [hushed, setHushed] = useState(false); // Esc hides the entry until the pointer or the focus comes back
  return html`<span class=${`explained ${hushed ? 'hushed' : ''}`} onMouseLeave=${() => setHushed(false)}
      onFocusOut=${() => setHushed(false)} onKeyDown=${(event) => event.key === 'Escape' && setHushed(true)}><button
    type="button" class="plain" aria-describedby=${id}>${words?.title ?? metric}</button>
    <span role="tooltip" id=${id} class="tip"><code>${metric}</code>${
      words &&
      html`<span>${words.what}</span>
      ${words.healthy && html`<span><b>Healthy:</b> ${words.healthy}</span>`}${words.otherwise && html`<span>
        <b>Otherwise:</b> ${words.otherwise}</span>`}`
    }</span></span>`;
}

function Topic({ topic, metrics, sought, ...rest }) {
  const [opened, setOpen] = useState(OPEN_TOPICS.has(topic)),
    open = opened || sought;
  const large = topic === 'outcome',
    { drawn, constant, alike } = useMemo(() => sorted(rest.lines, metrics), [rest.lines, metrics.join()]);
  const curve = (metric) =>
    html`<${Curve} key=${metric} ...${rest} metric=${metric} large=${large} words=${rest.words[metric]} />`;
  return html`<details class="topic" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h3>${TOPICS[topic]}</h3> <span class="quiet">${count(drawn.length, 'curve')}</span></summary>
    ${open && html`<div class=${large ? 'curves large' : 'curves'}>${drawn.map(curve)}</div>
      <${Undrawn} ...${rest} constant=${constant} alike=${alike} />`}
  </details>`;
}

/** List the metrics that would be a flat line, or the same line as another metric. */
function Undrawn({ lines, words, constant, alike }) {
  const title = (metric) => words[metric]?.title ?? metric;
  const value = (metric) => formOf(metric)(valuesOf(lines, metric).flat().find(known));
  const entries = [
    ...constant.map((metric) => [metric, html`always <b>${value(metric)}</b>`]),
    ...[...alike].map(([metric, twin]) => [metric, html`same as <b>${title(twin)}</b>`]),
  ];
  if (!entries.length) return null;
  return html`<ul class="undrawn">${entries.map(
    ([metric, said]) => html`<li data-test="undrawn" data-metric=${metric}>
      <${Explained} words=${words[metric]} metric=${metric} />
      <${Role} metric=${metric} runs=${runsOf(lines)} /> <span class="quiet">${said}</span></li>`,
  )}</ul>`;
}

/** Say what the lines and the shaded areas are. */
function Key({ lines, smooth }) {
  const several = lines.length > 1,
    banded = lines.some((line) => line.spread),
    interval = lines.some((line) => !line.spread);
  const shaded = [
    banded && 'of several seeds the range from the lowest to the highest, around their mean',
    interval && (banded ? 'of a run the 95\u00a0% interval' : '95\u00a0% interval'),
  ];
  const thin = banded || lines.length > 2 ? 'The lines are smoothed. ' : SMOOTHED;
  return html`<div class="key">${(several || banded) && html`<ul data-test="lines">${lines.map(
    (line) => html`<li><${Stroke} i=${line.ink} /><bdi>${plainText(line.name)}</bdi></li>`,
  )}</ul>`}
    <p class="note quiet">${smooth && thin}Below each title: ${
      lines.length > 2 ? 'the mean of the last fifth' : 'the means of the first and the last fifth'} of the
      steps, three to ten of them.
      Shaded: ${shaded.filter(Boolean).join('; ')}. Point at a curve to read its values, with the sample size n where
      it is known. ▲ marks a step with tokens; click a curve to open the nearest one.</p></div>`;
}

const SMOOTHED = 'Thin line: each step; thick line: smoothed. ';

function Curves({ runs, lines, apart, setApart, chosen, at, range, onStep }) {
  const [search, setSearch] = useState(''),
    [log, setLog] = useState(false);
  const words = useMemo(() => Object.assign({}, ...runs.map((run) => run.words).reverse()), [runs]);
  const all = new Set(runs.flatMap((run) => Object.keys(run.metrics.values)));
  const metrics = [...all].filter(
    (metric) => !isBand(metric, all) && runs.some((run) => run.metrics.values[metric]?.some(known)),
  );
  const matching = metrics.filter((metric) => isSought(metric, words, search));
  const topicOf = (metric) => words[metric]?.topic ?? 'policy';
  const topics = Object.keys(TOPICS)
    .map((topic) => [topic, matching.filter((metric) => topicOf(metric) === topic)])
    .filter(([, of]) => of.length);
  const why = runs.some((run) => run.recorded.length) ? 'There is no metrics.jsonl' : 'No step is finished yet';
  if (!metrics.length) return html`<p class="quiet">${why}: there is nothing to draw.</p>`;
  const smooth = metrics.some((metric) => valuesOf(runs, metric).some((values) => pointsOf(values) > FEW));
  const seeds = runs.some((run) => known(run.seeds));
  return html`<${Key} lines=${lines} smooth=${smooth} />
    <${CurveTools} runs=${runs} search=${search} setSearch=${setSearch} log=${log} setLog=${setLog}
      matching=${matching.length} seeds=${seeds} apart=${apart} setApart=${setApart} />
    ${topics.map(([topic, of]) => html`<${Topic} key=${topic} topic=${topic} metrics=${of} words=${words} lines=${lines}
      sought=${search !== ''} log=${log} chosen=${chosen} at=${at} range=${range} onStep=${onStep} />`)}`;
}
