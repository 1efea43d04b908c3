// The answer to "Did training help?", above the curves: held-out accuracy before and after training (the mean reward,
// where no answer has a verdict), then whether the probabilities moved in the direction of their pushes.
'use strict';

// The metrics that the tiles show: the findings do not repeat good news about them.
const ANSWERED = new Set([
  ...['eval/greedy', 'eval/sampled', 'eval/greedy_reward', 'eval/sampled_reward', 'reward', 'moved_as_intended'],
]);

const EVALUATIONS = [
  ['eval/greedy', 'Held-out accuracy', 'greedy answers'],
  ['eval/sampled', 'Held-out accuracy', 'sampled answers'],
  ['eval/greedy_reward', 'Held-out mean reward', 'greedy answers'],
  ['eval/sampled_reward', 'Held-out mean reward', 'sampled answers'],
];
const isAccuracy = (metric) => !metric.endsWith('_reward');

/** Return the evaluations to show: accuracy if answers have verdicts, and else the mean reward. */
function evaluationsOf(runs) {
  const made = EVALUATIONS.filter(([metric]) => runs.some((run) => evaluated(run, metric)));
  const accuracies = made.filter(([metric]) => isAccuracy(metric));
  return accuracies.length ? accuracies : made;
}

/** Return the first and the last evaluation with their 95 % intervals; null if there are fewer than two. */
function evaluated(run, metric) {
  const { steps, values } = run.metrics,
    [low, high] = bandOf(metric).map((name) => values[name] ?? []);
  const at = (name, i) => values[name]?.[i] ?? null,
    kind = metric.replace('_reward', ''),
    without = `${kind}_without_${isAccuracy(metric) ? 'verdict' : 'reward'}`;
  const found = (values[metric] ?? []).flatMap((value, i) =>
    known(value)
      ? [{ step: steps[i], value, low: low[i] ?? null, high: high[i] ?? null, missing: at(without, i),
          answers: at(`${kind}_answers`, i) }]
      : [],
  );
  return found.length > 1 ? { first: found[0], last: found.at(-1) } : null;
}

/** Return the means of the first and of the last values of a run, and of how many; null if there are none. */
const summary = (run, metric) => run.ends[metric] ?? null;

/** Return such means of all sampled answers: dynamic sampling chooses the groups of which `reward` is the mean. */
const ofAllSampled = (run, metric) => summary(run, `dynamic_sampling/${metric}`) ?? summary(run, metric);

const hasFinding = (run, rule) => run.findings.some((finding) => finding.rule === rule);

/** Answer whether the mean reward in training rose by more than chance, as the doctor does. */
function trainingVerdict(run) {
  if (hasFinding(run, 'reward_rose')) return 'Yes.';
  return hasFinding(run, 'reward_fell') ? 'No, it got worse.' : UNDECIDED;
}

/** Answer whether more reward is earned: by held-out answers if they decide it, else in training. */
function rewardVerdict(run) {
  const found = decisive(run),
    word = found ? verdict(found.ends) : UNDECIDED;
  return word === UNDECIDED ? trainingVerdict(run) : word;
}

const when = ({ step }) => (step === 0 ? 'before the first step' : `after step ${step}`);

const UNDECIDED = 'Not certain.';

/** Return whether the intervals are known: without any width, as those of a single question, they say nothing. */
function haveIntervals({ first, last }) {
  const wide = [first, last].some(({ low, high }) => high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)));
  return wide && [first.low, first.high, last.low, last.high].every(known);
}

/** Answer in a few words; "Yes" and "No" only if the intervals do not overlap. */
function verdict({ first, last }) {
  if (!haveIntervals({ first, last })) return UNDECIDED;
  if (last.low > first.high) return 'Yes.';
  if (last.high < first.low) return 'No, it got worse.';
  return UNDECIDED;
}

/** Return why the verdict is not certain. */
const doubtAbout = (ends) =>
  haveIntervals(ends)
    ? 'The 95\u00a0% intervals overlap: use more questions (eval.rows) to be certain.'
    : 'No 95\u00a0% interval is known.';

// A higher reward does not prove better answers: without verdicts, the answer is about the reward alone.
const OF_REWARDS = {
  'Yes.': 'The reward rose.',
  'No, it got worse.': 'The reward fell.',
};

/** Answer in a few words that say what was measured. */
function answerOf(metric, ends) {
  const word = verdict(ends);
  return isAccuracy(metric) ? word : (OF_REWARDS[word] ?? word);
}

/** Return whether rewards are more than right or wrong: then their mean says more than the share of right answers. */
function isGraded(run, metric) {
  const accuracy = evaluated(run, metric.replace('_reward', ''));
  return !accuracy || accuracy.last.value !== evaluated(run, metric).last.value;
}

/** Return the evaluation that answers: the first one, or, if it is undecided, one that is not. */
function decisive(run) {
  const made = EVALUATIONS.map(([metric, , answers]) => ({ metric, answers, ends: evaluated(run, metric) })).filter(
    ({ metric, ends }) => ends && (isAccuracy(metric) || isGraded(run, metric)),
  );
  return made.find(({ ends }) => verdict(ends) !== UNDECIDED) ?? made[0];
}

/** Return the first warning of the doctor about the run: what it says puts a good result in doubt. */
const firstWarning = (run) => run.findings.find(({ level, cause }) => level === 'warning' && !cause);

/** Return the warning that the first sentence says: answers earn the reward without what is asked. Else null. */
function hackOf(run) {
  const found = run.findings.find(({ is_hack, level, cause }) => is_hack && level === 'warning' && !cause);
  return found && rewardVerdict(run) !== 'No, it got worse.' ? found : null;
}

/** Return what such answers do, in a few words that begin "the answers", and the rest of the warning. */
function inTwo({ text }) {
  const [said, ...how] = plainText(text).split(': ');
  return [said, how.join(': ')];
}

/** Show two held-out answers of such a run. */
function Examples({ run }) {
  if (!hackOf(run) || !run.examples?.length) return null;
  return html`<ul class="examples" data-test="examples">${run.examples.map(
    ([question, answer]) => html`<li><bdi class="quiet">${oneLine(question, 160)}</bdi>
      <bdi>${oneLine(answer, 240) || '(an empty answer)'}</bdi></li>`,
  )}</ul>`;
}

const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function Doubt({ run }) {
  const warning = firstWarning(run);
  if (!warning || warning.rule === 'watched_reward_fell') return null; // the sentence about the rewards says it
  const text = warning === hackOf(run) ? inTwo(warning)[1] : plainText(warning.text);
  return html`<p class="note" data-test="doubt"><span aria-hidden="true">▲ </span><b>First read this warning:</b>
    ${' '}${capitalised(text)}</p>`;
}

/** Say what is known of right answers where the mean reward of held-out answers is told. */
function ofRight(run) {
  const [metric] = evaluationsOf([run])[0];
  if (isAccuracy(metric)) {
    const { first, last } = evaluated(run, metric);
    return `The share of right answers is ${percent(last.value)}; it was ${percent(first.value)}, which may be chance.`;
  }
  const judged = ofAllSampled(run, 'right');
  const why = judged ? 'No held-out answer was judged right or wrong' : NO_RULE;
  return `${why}, so it is not known whether more of them are right.`;
}

const NO_RULE = 'No rule of this run says which answers are right (eval.right)';

/** Say how the answers in training changed. */
function ofTraining(run) {
  const [reward, right] = ['reward', 'right'].map((metric) => ofAllSampled(run, metric));
  if (!reward) return null;
  const way = ([first, last], form) => html`from <b>${form(first)}</b> to <b>${form(last)}</b>`;
  return html`The mean reward in training went ${way(reward, figure)}${right
    ? html`, and the share of right answers ${way(right, percent)}.`
    : html`. <span class="quiet">${NO_RULE}.</span>`}`;
}

/** Say first that the reward is earned without what is asked, then what the run would look like without that. */
function HackLead({ run, hack }) {
  const found = decisive(run),
    [said] = inTwo(hack);
  return html`<p class="lead" data-test="lead"><b>${rewardVerdict(run) === 'Yes.'
      ? `The reward rose, and ${said}.`
      : `${capitalised(said)}.`}</b>${' '}
    <span class="quiet">${found ? `${isAccuracy(found.metric) ? 'The share of right' : 'The mean reward of'}
      held-out answers went from ${percentOr(found, 'first')} to ${percentOr(found, 'last')}.` : ofTraining(run)}
    </span></p>`;
}

function Lead({ run }) {
  const found = decisive(run),
    hack = hackOf(run),
    yet = (word) => (run.alive && word === UNDECIDED ? 'Not certain yet.' : word);
  if (hack) return html`<${HackLead} run=${run} hack=${hack} />`;
  if (!found) {
    const word = trainingVerdict(run),
      training = ofTraining(run);
    return training && html`<p class="lead" data-test="lead"><b>${yet(OF_REWARDS[word] ?? word)}</b> ${training}
      ${' '}<span class="quiet">The run has fewer than two evaluations on held-out questions.</span></p>`;
  }
  const { metric, answers, ends } = found,
    word = answerOf(metric, ends),
    kind = answers.replace(' answers', '');
  const why = word === UNDECIDED && ` ${doubtAbout(ends)}`;
  if (!isAccuracy(metric))
    return html`<p class="lead" data-test="lead"><b>${yet(word)}</b> The mean reward of held-out answers
      ${' '}is <b>${figure(ends.last.value)}</b> ${when(ends.last)}; ${when(ends.first)} it was
      ${' '}<b>${figure(ends.first.value)}</b> (${kind}).${why}
      ${' '}<span class="quiet">${ofRight(run)}</span></p>`;
  return html`<p class="lead" data-test="lead"><b>${yet(word)}</b> The policy answers
    ${' '}<b>${percent(ends.last.value)}</b> of the held-out questions correctly ${when(ends.last)};
    ${' '}${when(ends.first)} it was <b>${percent(ends.first.value)}</b> (${kind}).${why}</p>`;
}

/** Return the value at an end of an evaluation: a share in per cent, a reward as a number. */
const percentOr = ({ metric, ends }, end) => (isAccuracy(metric) ? percent : figure)(ends[end].value);

const rangeText = ({ low, high }) => `${figure(100 * low)}–${figure(100 * high)}`;

/** Draw both intervals on an axis from 0 to 100 %: a hollow mark for before, a filled one for after. */
function Intervals({ first, last }) {
  const x = (share) => `${100 * share}%`;
  const line = ({ value, low, high }, y, kind) => html`<g class=${kind}>
    <line class="rail" x1="0" x2="100%" y1=${y} y2=${y} />
    ${known(low) && known(high) && html`<line class="span" x1=${x(low)} x2=${x(high)} y1=${y} y2=${y} />`}
    <circle cx=${x(value)} cy=${y} r="4.5" /></g>`;
  const said = ({ value, low, high }) =>
    `${percent(value)}${known(low) && known(high) ? ` (${percent(low)} to ${percent(high)})` : ''}`;
  return html`<svg class="intervals" role="img"
      aria-label=${`${when(first)} ${said(first)}, ${when(last)} ${said(last)}; from 0 to 100 %`}>
    ${line(first, 8, 'before')}${line(last, 24, 'after')}</svg>
    ${known(first.low) && known(last.low) &&
      html`<p class="said quiet">95 % interval ${rangeText(first)} → ${rangeText(last)} %</p>`}`;
}

/** Say how many answers an evaluation leaves out, where it does. */
function LeftOut({ metric, evaluation: { missing, answers, ...evaluation } }) {
  return missing && answers && html`<p class="said quiet" data-test="left-out">${missing} of ${answers} without a
    ${' '}${isAccuracy(metric) ? 'verdict' : 'reward'} ${when(evaluation)}</p>`;
}

function Tile({ title, detail, children }) {
  return html`<section class="tile" data-test="tile"><h3>${title} <span class="quiet">${detail}</span></h3>
    ${children}</section>`;
}

const Way = ({ from, to, form }) => html`<p class="way"><span class="from">${form(from)}</span>
  <span class="quiet" aria-label="to"> → </span><b>${form(to)}</b></p>`;

/** Return the mean of "moved as intended" over a run's steps, and of how many; null if it was never measured. */
function movedAsPushed(run) {
  const shares = (run.metrics.values.moved_as_intended ?? []).filter(known);
  const tokens = (run.metrics.values['moved/tokens'] ?? []).reduce((sum, value) => sum + (value ?? 0), 0);
  return shares.length ? { share: mean(shares), steps: shares.length, tokens } : null;
}

const endsText = ([, , few]) =>
  few > 1 ? `means of the first and the last ${few} steps` : 'the first and the last step';

/** Answer for one run: in a sentence, then with one tile per quantity. */
function Answer({ run }) {
  const evaluations = evaluationsOf([run]).map(([metric, title, detail]) => {
    const { first, last } = evaluated(run, metric),
      form = isAccuracy(metric) ? percent : figure;
    return html`<${Tile} title=${title} detail=${html`${detail} <${Role} metric=${metric} runs=${[run]} />`}>
      <${Way} from=${first.value} to=${last.value} form=${form} />
      ${isAccuracy(metric) && html`<${Intervals} first=${first} last=${last} />`}
      <${LeftOut} metric=${metric} evaluation=${first} /><${LeftOut} metric=${metric} evaluation=${last} /><//>`;
  });
  const reward = ofAllSampled(run, 'reward'),
    moved = movedAsPushed(run);
  return html`<${Lead} run=${run} /><${RewardParts} run=${run} /><${Doubt} run=${run} /><${Examples} run=${run} />
    <div class="tiles">${evaluations}
      ${moved && html`<${Tile} title="Moved as intended" detail="each step">
        <p class="way"><b>${percent(moved.share)}</b></p>
        <p class="said quiet">of the pushed tokens, weighted by how far the pushes could move them;
          ${' '}${count(moved.tokens, 'token')} measured in ${count(moved.steps, 'step')}</p><//>`}
      ${reward && html`<${Tile} title="Mean reward"
        detail=${html`in training <${Role} metric="reward" runs=${[run]} />`}>
        <${Way} from=${reward[0]} to=${reward[1]} form=${figure} />
        <p class="said quiet">${endsText(reward)}</p><//>`}</div>`;
}
