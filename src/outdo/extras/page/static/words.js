// The texts about the quantities and states of a token.
'use strict';

const TOPICS = {
  outcome: 'Outcome',
  data: 'Data',
  tokens: 'Tokens',
  policy: 'Policy',
  engine: 'Engine',
  cost: 'Cost',
};

// kind: "diverging" around 0, or "rising" from 0. `of` computes the values from a step's columns; null without these.
const minus = (a, b) => a && b && a.map((value, i) => value - b[i]);

const QUANTITIES = [
  {
    name: 'moved',
    title: 'Moved',
    unit: 'nats',
    kind: 'diverging',
    ends: ['less likely', 'more likely'],
    what: 'Log-probability after the step minus the one before it.',
    of: (column) => minus(column('new'), column('old')),
  },
  {
    name: 'ratio',
    title: 'Ratio',
    unit: 'π / π old',
    kind: 'diverging',
    ends: ['less likely', 'more likely'],
    shown: Math.exp,
    what: 'Probability divided by the one before the step, measured in the last pass.',
    of: (column) => column('ratio')?.map(Math.log),
  },
  {
    name: 'advantage',
    title: 'Advantage',
    unit: '',
    kind: 'diverging',
    ends: ['worse than expected', 'better'],
    what: 'Advantage of the token: how much better than expected its rollout was.',
    of: (column) => column('advantages'),
  },
  {
    name: 'surprise',
    title: 'Surprise',
    unit: 'nats',
    kind: 'rising',
    ends: ['expected', 'surprising'],
    what: 'Minus the log-probability before the step.',
    of: (column) => column('old')?.map((value) => -value),
  },
  {
    name: 'gap',
    title: 'Gap to target or bound',
    unit: 'nats',
    kind: 'diverging',
    ends: ['should fall', 'should rise'],
    what: 'From the log-probability after the step to the one at which the objective stops pushing.',
    of: (column) => minus(column('bound'), column('new')),
  },
  {
    name: 'entropy',
    title: 'Entropy',
    unit: 'nats',
    kind: 'rising',
    ends: ['certain', 'uncertain'],
    what: 'Entropy of the next-token distribution at this token, in the last pass.',
    of: (column) => column('entropy'),
  },
  {
    name: 'policy_push',
    title: 'Policy push',
    unit: '',
    kind: 'diverging',
    ends: ['pushed down', 'pushed up'],
    what: 'Gradient of the policy term with respect to the log-probability, summed over the passes.',
    of: (column) => column('policy_push'),
  },
  {
    name: 'kl_pull',
    title: 'KL pull',
    unit: '',
    kind: 'diverging',
    ends: ['pulled down', 'pulled up'],
    what: 'Push of all other terms, such as the KL penalty or the divergence from a teacher, summed over the passes.',
    of: (column) => column('kl_pull'),
  },
  {
    name: 'net',
    title: 'Net push',
    unit: '',
    kind: 'diverging',
    ends: ['pushed down', 'pushed up'],
    what: 'Policy push and KL pull, summed over all rollouts with the same beginning: they share one probability.',
    of: (column) => column('net'),
  },
  {
    name: 'leverage',
    title: 'Leverage',
    unit: '',
    kind: 'diverging',
    ends: ['pushed down', 'pushed up'],
    what: 'Net push times (1 − probability before the step): how far the push can move the token.',
    of: (column) => {
      const [net, old] = ['net', 'old'].map(column);
      return net && old && net.map((push, i) => -push * Math.expm1(Math.min(old[i], 0)));
    },
  },
  {
    name: 'weight',
    title: 'Weight',
    unit: '',
    kind: 'diverging',
    ends: ['down', 'up'],
    what: 'Policy push of the first pass: how fast the probability moves.',
    of: (column) => column('weight'),
  },
  {
    name: 'teacher',
    title: 'Teacher: δ',
    unit: 'nats',
    kind: 'diverging',
    ends: ['teacher finds it less likely', 'more likely'],
    what: 'δ: log-probability under the teacher minus the one under the policy before the step.',
    of: (column) => minus(column('teacher'), column('old')),
  },
  {
    name: 'teacher_divergence',
    title: 'Teacher: divergence',
    unit: 'nats',
    kind: 'rising',
    ends: ['alike', 'far apart'],
    what: 'Divergence of policy and teacher over the whole vocabulary at this token, in the last pass.',
    of: (column) => column('teacher_divergence'),
  },
  {
    name: 'mismatch',
    title: 'Engine mismatch',
    unit: 'nats',
    kind: 'diverging',
    ends: ['engine higher', 'trainer higher'],
    what: 'Log-probability of the trainer minus that of the engine, before the step.',
    of: (column) => minus(column('old'), column('rollout')),
  },
  {
    name: 'value',
    title: 'Value',
    unit: '',
    kind: 'diverging',
    ends: ['low', 'high'],
    what: 'Value that the critic predicts here.',
    of: (column) => column('values'),
  },
  {
    name: 'difference',
    title: 'Compared: b − a',
    unit: 'nats',
    kind: 'diverging',
    ends: ['more likely under a', 'more likely under b'],
    what: 'Log-probability under checkpoint b minus that under a.',
    of: (column) => minus(column('b'), column('a')),
  },
];
const quantityOf = (name) => QUANTITIES.find((quantity) => quantity.name === name) ?? QUANTITIES[0];

const CLIP_WORDS = {
  free: 'The policy term pushes it, or a teacher pulls it.',
  low: 'Pushed down until it reached a bound: the policy term no longer pushes it down.',
  high: 'Pushed up until it reached a bound: the policy term no longer pushes it up.',
  unreachable: 'Pushed towards a bound beyond probability 1.',
  neutral: 'Its advantage is 0: nothing pushes it.',
  spared: 'Its advantage is not 0, but a mask of the objective excludes it.',
  unscored: 'The reward failed: not trained on.',
  truncated: 'The rollout was truncated: not trained on.',
  masked: 'Left out of the loss.',
  environment: 'Written by the environment, not by the policy: not trained on.',
  untrained: 'The step made no pass over it.',
};

const STATES = [
  ['reached', 'reached its target or bound'],
  ['clipped', 'clipped: no longer pushed'],
  ['wrong', 'moved against its net push'],
  ['dim', 'not trained on'],
];

// The first three need a verdict on each answer; without one, only the rewards are compared.
const OUTCOME_WORDS = {
  mixed: 'right and wrong',
  right: 'all right',
  wrong: 'all wrong',
  differ: 'rewards differ',
  equal: 'equal rewards',
  unscored: 'not scored',
};
const TURN_WORDS = `Of each turn of the policy: the reward that the environment gave it; push, the sum of policy push
  and KL pull over its tokens; moved, the sum over its tokens of the log-probability after the step minus the one before
  it. What an environment wrote is read and not trained: its push is 0.`;

const LEVELS = { good: ['●', 'Good'], note: ['○', 'Note'], warning: ['▲', 'Warning'] };

/** Return a rollout's result as a glyph and a word, so that it does not depend on colour alone. */
function verdictOf(row) {
  const word = (usual) => (row.status === 'ok' ? usual : row.status);
  if (row.reward === null) return { glyph: '–', word: word('not scored'), tone: 'none' };
  if (row.right === null) return { glyph: '·', word: word('reward'), tone: 'none' };
  return row.right
    ? { glyph: '✓', word: 'right', tone: 'right' }
    : { glyph: '✗', word: word('wrong'), tone: 'wrong' };
}
