// "Did training help": every metric as a small curve, all under one cursor.
'use strict';

const OPEN_TOPICS = new Set(['outcome', 'data', 'tokens']);
const FEW = 40; // with fewer points than this a curve shows them as they are, unsmoothed

const redraws = watched(0); // counts up when the theme changes: canvases do not follow style sheets by themselves

/** A colour of the style sheet as the canvas needs it. */
function inkOf(name) {
  const probe =
    document.getElementById('probe') ??
    document.body.appendChild(Object.assign(document.createElement('i'), { id: 'probe', hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Exponential mean that forgets half within a fiftieth of the run; gaps stay gaps. */
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

/** x and, for each run that knows the metric, raw and smoothed values; aligned where runs differ in their steps. */
function tableOf(runs, metric) {
  const tables = runs.map((run) => {
    const values = run.metrics.values[metric] ?? run.metrics.steps.map(() => null);
    return [run.metrics.steps, values, pointsOf(values) > FEW ? smoothed(values) : values];
  });
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

function seriesOf(runs, metric) {
  const series = [{ label: 'step' }];
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
  });
  return series;
}

const axisOf = (extra) => ({
  stroke: () => inkOf('quiet'),
  font: '10.5px system-ui, sans-serif',
  ticks: { show: false },
  grid: { stroke: () => inkOf('line'), width: 1 },
  ...extra,
});

/** Marks below a curve where tokens can be opened, a line at the open step, and the steps a finding is about. */
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

/** uPlot's options of one curve. `live` holds what changes between draws, so that the plot itself is made once. */
function optionsOf({ runs, metric, size, live, onCursor }) {
  return {
    ...size,
    padding: [6, 14, 0, 0],
    legend: { show: false },
    scales: { x: { time: false } },
    series: seriesOf(runs, metric),
    cursor: {
      y: false,
      drag: { x: false, y: false },
      sync: { key: 'outdo', scales: ['x', null] },
      points: { size: 7, fill: (plot, i) => plot.series[i].stroke(), width: 0 },
    },
    axes: [
      axisOf({ size: 18, gap: 2, space: 60, grid: { show: false } }),
      axisOf({ size: 42, gap: 3, space: 26, values: (_, ticks) => ticks.map((tick) => figure(tick, 3)) }),
    ],
    hooks: {
      draw: [(plot) => drawSteps(plot, live.current)],
      setCursor: [(plot) => onCursor(plot.cursor.idx, plot.data)],
      ready: [
        (plot) =>
          plot.over.addEventListener('click', () => {
            if (plot.cursor.left >= 0) live.current.onStep(plot.posToVal(plot.cursor.left, 'x'));
          }),
      ],
    },
  };
}

/** Draws a canvas only once it comes near the window: a run may have a hundred metrics. */
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
    return () => observer.disconnect();
  }, []);
  return near;
}

function Plot({ runs, metric, height, live, onCursor }) {
  const box = useRef(null),
    plot = useRef(null),
    near = useNear(box);
  const table = useMemo(() => tableOf(runs, metric), [runs, metric]);
  useEffect(() => {
    if (!near) return undefined;
    const size = () => ({ width: box.current.clientWidth, height });
    plot.current = new uPlot(optionsOf({ runs, metric, size: size(), live, onCursor }), table, box.current);
    const resized = new ResizeObserver(() => plot.current.setSize(size()));
    resized.observe(box.current);
    const unwatch = redraws.watch(() => plot.current.redraw());
    return () => {
      unwatch();
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [near, metric, runs.length]);
  useEffect(() => plot.current?.setData(table), [table]);
  useEffect(() => plot.current?.redraw(false), [live.current.at, live.current.chosen, live.current.range]);
  return html`<div class="plot" ref=${box} style=${{ height: `${height}px` }} aria-hidden="true"></div>`;
}

/** The section's question answered by the run's own outcomes. */
function Lead({ runs, words, metrics }) {
  const told = metrics
    .slice(0, 3)
    .map((metric) => ({ title: words[metric]?.title ?? metric, ends: runs.map((run) => summary(run, metric)) }));
  const full = told.filter(({ ends }) => ends.every(Boolean));
  if (!full.length) return null;
  const verb = ([first, last]) => (last > first ? 'rose' : last < first ? 'fell' : 'stayed');
  const clause = ({ ends }) =>
    ends.length === 1
      ? html`${verb(ends[0])} from <b>${figure(ends[0][0])}</b> to <b>${figure(ends[0][1])}</b>`
      : html`ended at <b>${figure(ends[0][1])}</b> in ${runs[0].name} and <b>${figure(ends[1][1])}
        </b> in ${runs[1].name}`;
  const title = (each, i) => (i ? `; ${lowerFirst(each.title)}` : each.title);
  return html`<p class="lead">${full.map((each, i) => html`${title(each, i)} ${clause(each)}`)}.</p>`;
}

const lowerFirst = (text) => (/^[A-Z]{2}/.test(text) ? text : text[0].toLowerCase() + text.slice(1));

/** First and last tenth of a run's values, as the sentence below a title. */
function summary(run, metric) {
  const values = (run.metrics.values[metric] ?? []).filter(known);
  if (!values.length) return null;
  const few = Math.max(1, Math.floor(values.length / 10));
  return [mean(values.slice(0, few)), mean(values.slice(-few))];
}

function Curve({ runs, metric, words, large, chosen, at, range, onStep }) {
  const readout = useRef(null),
    live = useRef(null);
  live.current = { chosen, at, range, onStep };
  const ends = runs.map((run) => summary(run, metric));
  const way = (pair) => (pair ? `${figure(pair[0])} → ${figure(pair[1])}` : UNKNOWN);
  const resting = ends.map(way).join('  ·  ');
  // The cursor writes here a hundred times a second, past the page's own drawing; so this text is never drawn by it.
  useLayoutEffect(() => {
    readout.current.textContent = resting;
  }, [resting]);
  const onCursor = useCallback((index, table) => {
    if (!readout.current) return;
    const values = known(index) && table.filter((_, i) => i % 2 === 1).map((column) => figure(column[index], 4));
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
      <output ref=${readout} data-resting=${resting}></output></figcaption>
    <${Plot} runs=${runs} metric=${metric} height=${large ? 150 : 92} live=${live} onCursor=${onCursor} />
  </figure>`;
}

/** A metric's name that says what it is when pointed at or focused. */
function Explained({ words, metric }) {
  const id = `what-${metric.replace(/[^\w]/g, '-')}`;
  return html`<span class="explained"><button type="button" class="plain"
    aria-describedby=${id}>${words?.title ?? metric}</button>
    <span role="tooltip" id=${id} class="tip"><code>${metric}</code>${
      words &&
      html`<span>${words.what}</span>
      ${words.healthy && html`<span><b>Healthy:</b> ${words.healthy}</span>`}${words.otherwise && html`<span>
        <b>Otherwise:</b> ${words.otherwise}</span>`}`
    }</span></span>`;
}

function Topic({ topic, metrics, ...rest }) {
  const [open, setOpen] = useState(OPEN_TOPICS.has(topic));
  const large = topic === 'outcome';
  return html`<details class="topic" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h3>${TOPICS[topic]}</h3> <span class="quiet">${count(metrics.length, 'curve')}</span></summary>
    ${
      open &&
      html`<div class=${large ? 'curves large' : 'curves'}>${metrics.map(
        (metric) =>
          html`<${Curve} key=${metric} ...${rest} metric=${metric} large=${large} words=${rest.words[metric]} />`,
      )}</div>`
    }
  </details>`;
}

function Curves({ runs, chosen, at, range, onStep }) {
  const words = useMemo(() => Object.assign({}, ...runs.map((run) => run.words).reverse()), [runs]);
  const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))].filter((metric) =>
    runs.some((run) => run.metrics.values[metric]?.some(known)),
  );
  const topicOf = (metric) => words[metric]?.topic ?? 'policy';
  const topics = Object.keys(TOPICS)
    .map((topic) => [topic, metrics.filter((metric) => topicOf(metric) === topic)])
    .filter(([, of]) => of.length);
  if (!topics.length) return html`<p class="quiet">No step is finished yet: there is nothing to draw.</p>`;
  return html`<${Lead} runs=${runs} words=${words} metrics=${topics[0][0] === 'outcome' ? topics[0][1] : []} />
    <p class="note"><i class="stroke a"></i>${runs[0].name}${runs[1] && html`<i class="stroke b"></i>${runs[1].name}`}
      <span class="quiet">Thin: each step; thick: smoothed. Below each title: the mean of the first and
        of the last tenth. ▲ marks steps with tokens: click to open one.</span></p>
    ${topics.map(([topic, of]) => html`<${Topic} key=${topic} topic=${topic} metrics=${of} words=${words} runs=${runs}
      chosen=${chosen} at=${at} range=${range} onStep=${onStep} />`)}`;
}
