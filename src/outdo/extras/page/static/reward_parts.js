// The parts of the reward: which are trained on, and which are only watched, because their weight is 0.
'use strict';

const OF_PART = /^(?:eval\/(?:[^/]+\/)?(?:greedy|sampled)_|dynamic_sampling\/)?rewards\/(.+)\/mean$/;
const OF_SUM = /^(?:eval\/(?:[^/]+\/)?(?:greedy|sampled)_|dynamic_sampling\/)?reward$/; // without watched parts

/** Return whether a metric is of a reward that is trained on or watched; null if no reward of the runs is watched. */
function roleOf(metric, runs) {
  const name = OF_PART.exec(metric)?.[1];
  if (!runs.some((run) => run.reward_parts.some(({ watched }) => watched))) return null;
  if (name === undefined) return OF_SUM.test(metric) ? 'trained on' : null;
  const found = runs.flatMap((run) => run.reward_parts.filter((part) => part.name === name)),
    watching = found.filter(({ watched }) => watched).length;
  if (!found.length) return null;
  if (watching === 0) return 'trained on';
  return watching === found.length ? 'watched' : `watched in ${watching} of ${found.length} runs`;
}

function Role({ metric, runs }) {
  const role = roleOf(metric, runs);
  return role && html`<span class=${`badge ${role === 'trained on' ? '' : 'watched'}`} data-test="role">${role}</span>`;
}

const CHANGES = { rose: 'rose', fell: 'fell', steady: 'went' }; // "went": the change can be chance

const partChange = ({ first, last, change }) => html`${CHANGES[change]} from <b>${figure(first)}</b> to
  ${' '}<b>${figure(last)}</b>`;

/** Return a clause about one part, or about several. */
function partsClause(parts, one, several) {
  const name = (part) => html`<bdi>${oneLine(part.name, 60)}</bdi>`;
  if (parts.length === 1) return html`${one} (${name(parts[0])}) ${partChange(parts[0])}`;
  return html`${several}: ${parts.map((part, i) => html`${i > 0 && ', '}${name(part)} ${partChange(part)}`)}`;
}

/** Say how the rewards that are trained on changed, and beside them those that are watched. */
function RewardParts({ run }) {
  const measured = run.reward_parts.filter(({ change }) => change),
    trained = measured.filter(({ watched }) => !watched),
    watched = measured.filter((part) => part.watched);
  if (!trained.length || !watched.length) return null;
  return html`<p class="note" data-test="reward-parts">
    ${partsClause(trained, 'The reward that is trained on', 'The rewards that are trained on')};
    ${' '}${partsClause(watched, 'the one that is only watched', 'those that are only watched')}.
    ${' '}<span class="quiet">In training: means of the first and the last fifth of the steps, three to ten of
      them.</span></p>`;
}
