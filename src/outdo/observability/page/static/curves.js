// The curves of "Did training help?": one small curve per metric, with a common cursor.
'use strict';

const OPEN_TOPICS = new Set(['outcome', 'data', 'tokens']);
const FEW = 40; // a curve with at most this many points shows them unsmoothed

const redraws = watched(0); // counts changes of the theme: a canvas does not follow the style sheet by itself

/** Return a colour of the style sheet in the form that the canvas needs. */
function inkOf(name) {
  const probe =
    document.getElementById('probe') ??
    document.body.appendChild(Object.assign(document.createElement('i'), { id: 'probe', hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Compute an exponential moving average whose half-life is a fiftieth of the run; gaps stay gaps. */
function smoothed(values) {
  const keep = 0.5 ** (50 / Math.max(50, values.length));
  let state = null;
  return values.map((value) => {
    if (!known(value)) return null;
    state = state === null ? value : state * keep + value * (1 - keep);
    return state;
  });
}

const pointsOf = (values) => values.reduce((n, value) => n + known(value), 0);

const COLUMNS = 4; // per run in a plot's table: raw, smoothed, and the two ends of the interval

/** Return x and the columns of each run, with nulls for missing values; runs with different steps are aligned. */
function tableOf(runs, metric) {
  const tables = runs.map((run) => {
    const column = (name) => run.metrics.values[name] ?? run.metrics.steps.map(() => null);
    const values = column(metric);
    const thick = pointsOf(values) > FEW ? smoothed(values) : values;
    return [run.metrics.steps, values, thick, ...bandOf(metric).map(column)];
  });
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

function seriesOf(runs, metric) {
  const series = [{ label: 'step' }];
  const end = { label: 'interval', width: 0, spanGaps: true, points: { show: false } };
  runs.forEach((run, i) => {
    const few = pointsOf(run.metrics.values[metric] ?? []) <= FEW;
    const ink = i ? 'run-b' : 'run-a',
      dash = i ? [5, 3] : undefined;
    series.push({
      label: 'raw',
      stroke: () => inkOf(`${ink}-faint`),
      width: 1,
      spanGaps: true,
      show: !few,
      points: { show: false },
    });
    series.push({
      label: run.name,
      stroke: () => inkOf(ink),
      width: 1.75,
      dash,
      spanGaps: true,
      points: { show: few, size: 4, fill: () => inkOf(ink) },
    });
    series.push({ ...end, stroke: () => inkOf(`${ink}-faint`) }, { ...end, stroke: () => inkOf(`${ink}-faint`) });
  });
  return series;
}

/** Fill the area between the ends of each run's interval. */
const bandsOf = (runs) =>
  runs.map((_, i) => ({
    series: [i * COLUMNS + 4, i * COLUMNS + 3],
    fill: () => inkOf(i ? 'run-b-band' : 'run-a-band'),
  }));

/** The axis of a share goes from 0 to 1; that of a share that is always tiny starts at 0. */
const rangeOf = (metric) =>
  isShare(metric) ? (_, least, most) => (most > TINY ? [0, 1] : [0, (most || TINY) * 1.1]) : undefined;

// Steps are whole numbers, and so are the marks of their axis.
const STEP_INCREMENTS = [0, 1, 2, 3, 4, 5, 6].flatMap((zeros) => [1, 2, 5].map((one) => one * 10 ** zeros));

const axisOf = (extra) => ({
  stroke: () => inkOf('quiet'),
  font: '10.5px system-ui, sans-serif',
  ticks: { show: false },
  grid: { stroke: () => inkOf('line'), width: 1 },
  ...extra,
});

/** Draw marks for steps with tokens, a line at the open step, and the steps of the selected finding. */
function drawSteps(plot, { chosen, at, range }) {
  const { ctx, bbox } = plot,
    ratio = devicePixelRatio;
  const middle = (step) => Math.round(plot.valToPos(step, 'x', true));
  ctx.save();
  if (range) {
    ctx.fillStyle = inkOf('band');
    ctx.fillRect(middle(range[0]) - ratio, bbox.top, middle(range[1]) - middle(range[0]) + 2 * ratio, bbox.height);
  }
  ctx.fillStyle = inkOf('accent');
  for (const step of chosen) {
    const x = middle(step),
      y = bbox.top + bbox.height;
    ctx.beginPath();
    ctx.moveTo(x, y - 5 * ratio);
    ctx.lineTo(x - 3 * ratio, y);
    ctx.lineTo(x + 3 * ratio, y);
    ctx.fill();
  }
  if (chosen.includes(at)) ctx.fillRect(middle(at) - ratio / 2, bbox.top, ratio, bbox.height);
  ctx.restore();
}

/** Return uPlot's options for one curve. `live` holds what changes between draws, so that the plot is built once. */
function optionsOf({ runs, metric, size, live, log, zoom, onCursor }) {
  const positive = valuesOf(runs, metric).every((values) => values.every((value) => !known(value) || value > 0));
  const y = log && positive ? { distr: 3 } : { range: rangeOf(metric) };
  return {
    ...size,
    padding: [6, 14, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y },
    series: seriesOf(runs, metric),
    bands: bandsOf(runs),
    cursor: {
      y: false,
      drag: { x: zoom, y: false },
      sync: { key: 'outdo', scales: ['x', null] },
      points: { size: (_, i) => (i % COLUMNS === 2 ? 7 : 0), fill: (plot, i) => plot.series[i].stroke(), width: 0 },
    },
    axes: [
      axisOf({ size: 18, gap: 2, space: 44, grid: { show: false }, incrs: STEP_INCREMENTS }),
      axisOf({ size: 42, gap: 3, space: 20, values: (_, ticks) => ticks.map((tick) => formOf(metric)(tick)) }),
    ],
    hooks: {
      draw: [(plot) => drawSteps(plot, live.current)],
      setCursor: [(plot) => onCursor(plot.cursor.idx, plot.data)],
      ready: [
        (plot) =>
          plot.over.addEventListener('click', () => {
            if (plot.cursor.left >= 0 && !zoom) live.current.onStep(plot.posToVal(plot.cursor.left, 'x'));
          }),
      ],
    },
  };
}

/**
 * Draw a canvas when it comes near the window, because a run can have a hundred metrics; the others when the browser
 * has nothing else to do, so that a printed page has them.
 */
function useNear(ref) {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(
      ([entry]) => {
        if (!entry.isIntersecting) return;
        setNear(true);
        observer.disconnect();
      },
      { rootMargin: '300px' },
    );
    observer.observe(ref.current);
    const idle = requestIdleCallback(() => setNear(true));
    return () => {
      observer.disconnect();
      cancelIdleCallback(idle);
    };
  }, []);
  return near;
}

function Plot({ runs, metric, height, live, log = false, zoom = false, onCursor }) {
  const box = useRef(null),
    plot = useRef(null),
    near = useNear(box);
  const table = useMemo(() => tableOf(runs, metric), [runs, metric]);
  useEffect(() => {
    if (!near) return undefined;
    const size = () => ({ width: box.current.clientWidth, height });
    plot.current = new uPlot(optionsOf({ runs, metric, size: size(), live, log, zoom, onCursor }), table, box.current);
    const resized = new ResizeObserver(() => plot.current.setSize(size()));
    resized.observe(box.current);
    const unwatch = redraws.watch(() => plot.current.redraw());
    return () => {
      unwatch();
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [near, metric, runs.length, log]);
  useEffect(() => plot.current?.setData(table), [table]);
  useEffect(() => plot.current?.redraw(false), [live.current.at, live.current.chosen, live.current.range]);
  return html`<div class="plot" ref=${box} style=${{ height: `${height}px` }} aria-hidden="true"></div>`;
}

/** Return the value of each run at a row of the table, with its interval if there is one. */
function readingsAt(table, index, form) {
  const readings = [];
  for (let first = 1; first < table.length; first += COLUMNS) {
    const [value, , low, high] = table.slice(first, first + COLUMNS).map((column) => column[index]);
    const interval = known(low) && known(high) ? ` (${form(low)} to ${form(high)})` : '';
    readings.push((form === percent ? percent(value) : figure(value, 4)) + interval);
  }
  return readings;
}

function Curve({ runs, metric, words, large, log, chosen, at, range, onStep }) {
  const readout = useRef(null),
    live = useRef(null);
  const [enlarged, setEnlarged] = useState(false);
  live.current = { chosen, at, range, onStep };
  const ends = runs.map((run) => summary(run, metric));
  const form = formOf(metric),
    way = (pair) => (pair ? `${form(pair[0])} → ${form(pair[1])}` : UNKNOWN);
  const resting = ends.map(way).join('  ·  ');
  // The cursor sets this text directly, a hundred times a second, so that Preact never renders it.
  useLayoutEffect(() => {
    readout.current.textContent = resting;
  }, [resting]);
  const onCursor = useCallback((index, table) => {
    if (!readout.current) return;
    const values = known(index) && readingsAt(table, index, form);
    readout.current.textContent = values
      ? `${values.join('  ·  ')}   at ${table[0][index]}`
      : readout.current.dataset.resting;
  }, []);
  const better =
    words?.better &&
    html`<span class="better"
      title=${`${words.better === 'up' ? 'Higher' : 'Lower'} is better`}>
      ${words.better === 'up' ? '↑' : '↓'}</span>`;
  return html`<figure class=${`curve ${large ? 'large' : ''}`} data-test="curve" data-metric=${metric}>
    <figcaption><${Explained} words=${words} metric=${metric} />${better}
      <button type="button" class="plain enlarge" data-test="enlarge" aria-label=${`Enlarge ${words?.title ?? metric}`}
        onClick=${() => setEnlarged(true)}>⤢</button>
      <output ref=${readout} data-resting=${resting}></output></figcaption>
    <${Plot} runs=${runs} metric=${metric} height=${large ? 150 : 92} live=${live} log=${log} onCursor=${onCursor} />
    ${enlarged && html`<${Enlarged} runs=${runs} metric=${metric} words=${words} log=${log} live=${live}
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
    { drawn, constant, alike } = useMemo(() => sorted(rest.runs, metrics), [rest.runs, metrics.join()]);
  const curve = (metric) =>
    html`<${Curve} key=${metric} ...${rest} metric=${metric} large=${large} words=${rest.words[metric]} />`;
  return html`<details class="topic" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h3>${TOPICS[topic]}</h3> <span class="quiet">${count(drawn.length, 'curve')}</span></summary>
    ${open && html`<div class=${large ? 'curves large' : 'curves'}>${drawn.map(curve)}</div>
      <${Undrawn} ...${rest} constant=${constant} alike=${alike} />`}
  </details>`;
}

/** List the metrics that would be a flat line, or the same line as another metric. */
function Undrawn({ runs, words, constant, alike }) {
  const title = (metric) => words[metric]?.title ?? metric;
  const value = (metric) => formOf(metric)(valuesOf(runs, metric).flat().find(known));
  const entries = [
    ...constant.map((metric) => [metric, html`always <b>${value(metric)}</b>`]),
    ...[...alike].map(([metric, twin]) => [metric, html`same as <b>${title(twin)}</b>`]),
  ];
  if (!entries.length) return null;
  return html`<ul class="undrawn">${entries.map(
    ([metric, said]) => html`<li data-test="undrawn" data-metric=${metric}>
      <${Explained} words=${words[metric]} metric=${metric} /> <span class="quiet">${said}</span></li>`,
  )}</ul>`;
}

function Curves({ runs, chosen, at, range, onStep }) {
  const words = useMemo(() => Object.assign({}, ...runs.map((run) => run.words).reverse()), [runs]);
  const all = new Set(runs.flatMap((run) => Object.keys(run.metrics.values)));
  const metrics = [...all].filter(
    (metric) => !isBand(metric, all) && runs.some((run) => run.metrics.values[metric]?.some(known)),
  );
  const [search, setSearch] = useState(''),
    [log, setLog] = useState(false);
  const matching = metrics.filter((metric) => isSought(metric, words, search));
  const topicOf = (metric) => words[metric]?.topic ?? 'policy';
  const topics = Object.keys(TOPICS)
    .map((topic) => [topic, matching.filter((metric) => topicOf(metric) === topic)])
    .filter(([, of]) => of.length);
  const why = runs.some((run) => run.recorded.length) ? 'There is no metrics.jsonl' : 'No step is finished yet';
  if (!metrics.length) return html`<p class="quiet">${why}: there is nothing to draw.</p>`;
  const smooth = metrics.some((metric) => valuesOf(runs, metric).some((values) => pointsOf(values) > FEW));
  const name = (run, i) => html`<i class=${`stroke ${i ? 'b' : 'a'}`}></i><bdi>${plainText(run.name)}</bdi>`;
  return html`<p class="note key">${runs.length > 1 && runs.map(name)}
      <span class="quiet">${smooth && 'Thin line: each step; thick line: smoothed. '}Below each title: the means of the
        first and the last tenth of the steps. Shaded: 95 % interval. ▲ marks a step with tokens; click a curve to open
        the nearest one.</span></p>
    <${CurveTools} runs=${runs} search=${search} setSearch=${setSearch} log=${log} setLog=${setLog}
      matching=${matching.length} />
    ${topics.map(([topic, of]) => html`<${Topic} key=${topic} topic=${topic} metrics=${of} words=${words} runs=${runs}
      sought=${search !== ''} log=${log} chosen=${chosen} at=${at} range=${range} onStep=${onStep} />`)}`;
}
