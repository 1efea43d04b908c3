// What a curve is drawn of: a run, or the runs that differ only in the seed, as their mean and the range between them.
'use strict';

const INKS = 10; // the style sheet has so many colours for runs: --run-0 to --run-9
const DASHES = [[], [6, 3], [2, 2.5], [10, 3, 2, 3]]; // so that lines do not depend on their colours alone

const inkOfRun = (i) => `run-${i % INKS}`;
const dashOf = (i) => DASHES[i % DASHES.length];

/** Draw a short piece of a run's line, for a key or a table. */
const Stroke = ({ i }) => html`<svg class=${`stroke ink-${i % INKS}`} width="26" height="8" viewBox="0 0 26 8"
  aria-hidden="true"><path d="M1 4H25" stroke-dasharray=${dashOf(i).join(' ')} /></svg>`;

/**
 * Return the lines to draw, each with its name, colour and values, and with the runs that it stands for.
 * Runs that differ only in the seed are one line, unless they are wanted `apart`.
 */
function drawnLines(runs, apart) {
  const groups = new Map();
  runs.forEach((run, i) => {
    const key = apart || !known(run.seeds) ? `run ${i}` : run.seeds;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  });
  return [...groups.values()].map((members) => {
    const ink = runs.indexOf(members[0]);
    return members.length > 1 ? seedLine(members, ink) : runLine(members[0], ink);
  });
}

const runLine = (run, ink) => {
  const { name, words, metrics, ends } = run;
  return { name, ink, words, metrics, ends, members: [run] };
};

const runsOf = (lines) => lines.flatMap(({ members }) => members);

/** Return the colour of a run: that of the line that stands for it. */
const inkAmong = (lines, run) => lines.find(({ members }) => members.includes(run)).ink;

/** Return the settings of a group of seeds that differ from those of other runs. */
const settingsOf = (run) =>
  Object.entries(run.differs ?? {})
    .filter(([name]) => name !== 'seed')
    .map(([name, value]) => `${name} = ${value}`);

/** Return the mean over the seeds at each step that one of them has, the least and the largest value, and how many. */
function seedLine(members, ink) {
  const steps = [...new Set(members.flatMap((run) => run.metrics.steps))].sort((x, y) => x - y);
  const places = members.map((run) => new Map(run.metrics.steps.map((step, i) => [step, i])));
  const names = new Set(members.flatMap((run) => Object.keys(run.metrics.values)));
  const values = {},
    spread = {};
  for (const name of names) {
    const found = steps.map((step) =>
      members.map((run, k) => run.metrics.values[name]?.[places[k].get(step)]).filter(known),
    );
    values[name] = found.map(mean);
    spread[name] = {
      low: found.map((each) => (each.length ? Math.min(...each) : null)),
      high: found.map((each) => (each.length ? Math.max(...each) : null)),
      n: found.map((each) => each.length || null),
    };
  }
  const ends = Object.fromEntries([...names].map((name) => [name, meanEnds(members, name)]));
  const seeds = members.map((run) => run.differs?.seed).filter(known);
  const what = [...settingsOf(members[0]), `${members.length} seeds${seeds.length ? ` (${seeds.join(', ')})` : ''}`];
  return { name: what.join(', '), ink, words: members[0].words, metrics: { steps, values }, ends, members, spread };
}

/** Return the means over several runs of the ends of a metric. */
function meanEnds(members, name) {
  const found = members.map((run) => run.ends[name]).filter(Boolean);
  return found.length ? [0, 1, 2].map((i) => mean(found.map((ends) => ends[i]))) : null;
}

/** Return the ends of a line's interval or range at each step, and its sample size; undefined if not known. */
function boundsOf(line, metric) {
  if (line.spread) return line.spread[metric] ?? {};
  const { values } = line.metrics,
    [low, high] = bandOf(metric).map((name) => values[name]);
  return { low, high, n: values[line.words[metric]?.n] };
}

/** Describe the interval and the sample size of a value; '' if neither is known. */
function boundsText(line, form, { low, high, n }) {
  const both = known(low) && known(high);
  const range = both && (line.spread ? 'min to max ' : '95\u00a0% interval ') + `${form(low)} to ${form(high)}`;
  const size = known(n) && (line.spread ? count(n, 'run') : `n\u00a0=\u00a0${figure(n, 6)}`);
  const said = [range, size].filter(Boolean).join(', ');
  return said && ` (${said})`;
}
