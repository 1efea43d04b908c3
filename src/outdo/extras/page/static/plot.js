// One plot: the lines of a metric on a canvas, with their intervals, the marks of steps, and a cursor.
'use strict';

const FEW = 40; // a curve with at most this many points shows them unsmoothed

const redraws = watched(0); // counts changes of the theme: a canvas does not follow the style sheet by itself

/** Return a colour of the style sheet in the form that the canvas needs, with an opacity. */
function inkOf(name, opacity = 1) {
  const probe =
    document.getElementById('probe') ??
    document.body.appendChild(Object.assign(document.createElement('i'), { id: 'probe', hidden: true }));
  probe.style.color = `color-mix(in srgb, var(--${name}) ${100 * opacity}%, transparent)`;
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

const COLUMNS = 5; // per line in a plot's table: raw, smoothed, the ends of the interval, and the sample size

/** Return x and the columns of each line, with nulls for missing values; lines with different steps are aligned. */
function tableOf(lines, metric) {
  const tables = lines.map((line) => {
    const none = line.metrics.steps.map(() => null),
      values = line.metrics.values[metric] ?? none,
      { low = none, high = none, n = none } = boundsOf(line, metric);
    const many = pointsOf(values) > FEW,
      drawn = line.spread && many ? smoothed : (column) => column;
    return [line.metrics.steps, values, many ? smoothed(values) : values, drawn(low), drawn(high), n];
  });
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

function seriesOf(lines, metric) {
  const series = [{ label: 'step' }];
  const hidden = { show: false, auto: false };
  for (const line of lines) {
    const few = pointsOf(line.metrics.values[metric] ?? []) <= FEW,
      ink = inkOfRun(line.ink),
      thin = lines.length > 2 ? 1.4 : 1.75;
    const end = { label: 'interval', width: 0, spanGaps: true, points: { show: false } };
    series.push(
      {
        label: 'raw',
        stroke: () => inkOf(ink, 0.28),
        width: 1,
        spanGaps: true,
        show: !few && lines.length < 3 && !line.spread, // of many lines only the smoothed ones can be told apart
        points: { show: false },
      },
      {
        label: line.name,
        stroke: () => inkOf(ink),
        width: thin,
        dash: dashOf(line.ink),
        spanGaps: true,
        points: { show: few, size: 4, fill: () => inkOf(ink) },
      },
      { ...end, stroke: () => inkOf(ink, 0.28) },
      { ...end, stroke: () => inkOf(ink, 0.28) },
      { ...hidden, label: 'n' },
    );
  }
  return series;
}

/** Fill the area between the ends of each line's interval. */
const bandsOf = (lines) =>
  lines.map((line, i) => ({
    series: [i * COLUMNS + 4, i * COLUMNS + 3],
    fill: () => inkOf(inkOfRun(line.ink), line.spread ? 0.2 : 0.14),
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
  let before = -Infinity; // marks that would overlap are left out
  for (const step of chosen) {
    const x = middle(step),
      y = bbox.top + bbox.height;
    if (x - before < 8 * ratio) continue;
    before = x;
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
function optionsOf({ lines, metric, size, live, log, zoom, onCursor }) {
  const positive = valuesOf(lines, metric).every((values) => values.every((value) => !known(value) || value > 0));
  const y = log && positive ? { distr: 3 } : { range: rangeOf(metric) };
  return {
    ...size,
    padding: [6, 14, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y },
    series: seriesOf(lines, metric),
    bands: bandsOf(lines),
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

// A printed page has every curve, in the colours of the light theme; `redraws` draws them anew.
const printing = matchMedia('print');
printing.addEventListener('change', () => redraws.set(redraws.get() + 1));

/**
 * Return whether a canvas has to be drawn: when it comes near the window, because a run can have a hundred metrics; the
 * others when the browser has nothing else to do, or at once when the page is printed. `onSight` is called whenever it
 * comes near again; `inSight` says whether it is.
 */
function useNear(ref, onSight) {
  const [near, setNear] = useState(false),
    inSight = useRef(false),
    told = useRef(onSight);
  told.current = onSight;
  useEffect(() => {
    const show = () => {
      setNear(true);
      told.current();
    };
    const observer = new IntersectionObserver(
      ([entry]) => {
        inSight.current = entry.isIntersecting;
        if (entry.isIntersecting) show();
      },
      { rootMargin: '300px' },
    );
    observer.observe(ref.current);
    const idle = requestIdleCallback(() => setNear(true));
    printing.addEventListener('change', show);
    return () => {
      observer.disconnect();
      cancelIdleCallback(idle);
      printing.removeEventListener('change', show);
    };
  }, []);
  return { near, inSight };
}

function Plot({ lines, metric, height, live, log = false, zoom = false, onCursor }) {
  const box = useRef(null),
    plot = useRef(null),
    drawn = useRef(null), // the lines that the canvas shows: those of a growing run are drawn only in sight
    current = useRef(lines);
  current.current = lines;
  const refresh = () => {
    if (!plot.current || drawn.current === current.current) return;
    drawn.current = current.current;
    plot.current.setData(tableOf(current.current, metric));
  };
  const { near, inSight } = useNear(box, refresh);
  const names = lines.map(({ name }) => name).join();
  // In the layout phase: a printed page does not wait for effects that run after the next frame.
  useLayoutEffect(() => {
    if (!near) return undefined;
    const size = () => ({ width: box.current.clientWidth, height });
    const options = optionsOf({ lines, metric, size: size(), live, log, zoom, onCursor });
    plot.current = new uPlot(options, tableOf(lines, metric), box.current);
    drawn.current = lines;
    const resized = new ResizeObserver(() => plot.current.setSize(size()));
    resized.observe(box.current);
    const unwatch = redraws.watch(() => plot.current.redraw());
    return () => {
      unwatch();
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [near, metric, names, log]);
  useEffect(() => {
    if (inSight.current) refresh();
  }, [lines]);
  useEffect(() => plot.current?.redraw(false), [live.current.at, live.current.chosen, live.current.range]);
  return html`<div class="plot" ref=${box} style=${{ height: `${height}px` }} aria-hidden="true"></div>`;
}

/** Return what is read at a row of the table: of each line its value, with its interval and sample size if known. */
function readingsAt(lines, table, index, form) {
  return lines.flatMap((line, i) => {
    const [value, , low, high, n] = table.slice(1 + i * COLUMNS, 1 + (i + 1) * COLUMNS).map((column) => column[index]);
    if (!known(value) && lines.length > 1) return [];
    const bounds = lines.length < 3 || line.spread ? boundsText(line, form, { low, high, n }) : '';
    return [{ line, text: (form === percent ? percent(value) : figure(value, 4)) + bounds }];
  });
}

/**
 * Show readings in an element, in the colours of their lines, and the step where they are read.
 * This is done without Preact: the cursor moves a hundred times a second.
 */
function showReadings(output, readings, step = null) {
  const parts = readings.map(({ line, text }) => element('span', { class: `reading ink-${line.ink % INKS}` }, text));
  output.classList.toggle('several', readings.length > 1);
  const where = step === null ? '' : `   at ${step}`;
  output.replaceChildren(...parts.flatMap((part, i) => (i ? ['  ·  ', part] : [part])), where);
}
