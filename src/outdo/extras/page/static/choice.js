// Which curves are drawn, in which order and how: a run has a hundred metrics, and most of them tell little.
'use strict';

// The most important metrics first; the others follow in alphabetical order.
const LEADING = [
  ...['eval/greedy', 'eval/sampled', 'eval/greedy_reward', 'eval/sampled_reward', 'reward'],
  ...['right', 'transfer', 'transfer/followed', 'baseline'],
  ...['frac_zero_advantage', 'frac_reward_zero_std', 'frac_all_right', 'frac_all_wrong', 'reward_group_std'],
  ...['completions/mean_length'],
  ...['moved_as_intended', 'moved_wrong_way', 'target/reached', 'target_reached', 'attained', 'cancelled', 'certain'],
  ...['unreachable', 'overshoot', 'moved_not', 'clip_ratio/region_mean', 'kl', 'entropy', 'grad_norm', 'loss'],
];
const ALWAYS = new Set([
  ...['eval/greedy', 'eval/sampled', 'eval/greedy_reward', 'eval/sampled_reward', 'reward', 'moved_as_intended'],
]);

const SHARE = new RegExp(
  `^(${[
    ...['eval/(.*/)?(greedy|sampled)', 'right', 'frac_.*', 'moved_(right_way|wrong_way|not)', 'certain', 'cancelled'],
    ...['unreachable', 'target_reached', 'overshoot', 'target/(reached|wrong_way|overshoot|unreachable)'],
    ...['clip_ratio/.*', 'completions/clipped_ratio', 'transfer/followed', 'value/clipped'],
    ...['reward_model/(accuracy|fitted)', 'passes/stopped/.*'],
  ].join('|')})$`,
);
const TINY = 0.05; // a share that stays below this would be a flat line at the bottom of an axis from 0 to 1

const isShare = (metric) => SHARE.test(metric);

/** Return the function that formats a metric's values. */
const formOf = (metric) => (isShare(metric) ? percent : figure);

/** The ends of a curve's interval are drawn as its band, not as separate curves. */
const bandOf = (metric) => [`${metric}_low`, `${metric}_high`];
const isBand = (metric, all) => /_(low|high)$/.test(metric) && all.has(metric.replace(/_(low|high)$/, ''));

const valuesOf = (runs, metric) => runs.map((run) => run.metrics.values[metric] ?? []);

function isConstant(runs, metric) {
  const values = valuesOf(runs, metric).flat().filter(known);
  return values.length > 2 && values.every((value) => value === values[0]);
}

const isAlike = (runs, one, other) =>
  runs.every((run) => {
    const [these, those] = [run.metrics.values[one], run.metrics.values[other]];
    return these === those || Boolean(these && those && these.every((value, i) => value === those[i]));
  });

/** Split a topic's metrics: those to draw, those that never changed, and those equal to one that is drawn. */
function sorted(runs, metrics) {
  const rank = (metric) => (LEADING.includes(metric) ? LEADING.indexOf(metric) : LEADING.length);
  const drawn = [],
    constant = [],
    alike = new Map();
  for (const metric of [...metrics].sort((a, b) => rank(a) - rank(b))) {
    const twin = drawn.find((other) => isAlike(runs, metric, other));
    if (!ALWAYS.has(metric) && isConstant(runs, metric)) constant.push(metric);
    else if (twin && (!ALWAYS.has(metric) || metric.endsWith('_reward'))) alike.set(metric, twin);
    else drawn.push(metric);
  }
  return { drawn, constant, alike };
}
