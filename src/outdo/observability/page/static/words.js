// What the page says of the quantities and states of a token.
'use strict';

const TOPICS = {
  outcome: 'Outcome',
  data: 'Data',
  tokens: 'Tokens',
  policy: 'Policy',
  engine: 'Engine',
  cost: 'Cost',
};

// kind: "diverging" around 0, or "rising" from 0. `of` computes it from a step's columns; null: they are not there.
const minus = (a, b) => a && b && a.map((value, i) => value - b[i]);

const QUANTITIES = [
  {
    name: 'moved',
    title: 'Moved',
    unit: 'nats',
    kind: 'diverging',
    ends: ['less likely', 'more likely'],
    what: 'Log-probability after the step, less that before it.',
    of: (column) => minus(column('new'), column('old')),
  },
  {
    name: 'ratio',
    title: 'Ratio',
    unit: 'π / π old',
    kind: 'diverging',
    ends: ['less likely', 'more likely'],
    shown: Math.exp,
    what: 'Probability over that before the step, as the objective saw it in its last pass.',
    of: (column) => column('ratio')?.map(Math.log),
  },
  {
    name: 'advantage',
    title: 'Advantage',
    unit: '',
    kind: 'diverging',
    ends: ['worse than expected', 'better'],
    what: 'How much better than expected the answer was, as the token was told.',
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
    what: 'From the log-probability after the step to where the objective stops pushing.',
    of: (column) => minus(column('bound'), column('new')),
  },
  {
    name: 'entropy',
    title: 'Entropy',
    unit: 'nats',
    kind: 'rising',
    ends: ['certain', 'open'],
    what: 'Of the distribution the token was drawn from, in the last pass.',
    of: (column) => column('entropy'),
  },
  {
    name: 'policy_push',
    title: 'Policy push',
    unit: '',
    kind: 'diverging',
    ends: ['pushed down', 'pushed up'],
    what: 'What the policy term adds to the gradient of the log-probability, summed over the passes.',
    of: (column) => column('policy_push'),
  },
  {
    name: 'kl_pull',
    title: 'KL pull',
    unit: '',
    kind: 'diverging',
    ends: ['pulled down', 'pulled up'],
    what: 'What the KL term adds to it, summed over the passes.',
    of: (column) => column('kl_pull'),
  },
  {
    name: 'net',
    title: 'Net push',
    unit: '',
    kind: 'diverging',
    ends: ['pushed down', 'pushed up'],
    what: 'Both, added over the answers that begin alike: they share one probability, and it can only follow the sum.',
    of: (column) => column('net'),
  },
  {
    name: 'weight',
    title: 'Weight',
    unit: '',
    kind: 'diverging',
    ends: ['down', 'up'],
    what: 'Policy push of the first pass: how fast.',
    of: (column) => column('weight'),
  },
  {
    name: 'mismatch',
    title: 'Engine mismatch',
    unit: 'nats',
    kind: 'diverging',
    ends: ['engine higher', 'trainer higher'],
    what: 'Log-probability of the trainer, less that of the engine, before the step.',
    of: (column) => minus(column('old'), column('rollout')),
  },
  {
    name: 'value',
    title: 'Value',
    unit: '',
    kind: 'diverging',
    ends: ['low', 'high'],
    what: 'What the critic expected here.',
    of: (column) => column('values'),
  },
  {
    name: 'difference',
    title: 'Compared: b − a',
    unit: 'nats',
    kind: 'diverging',
    ends: ['likelier under a', 'likelier under b'],
    what: 'Log-probability under checkpoint b, less that under a.',
    of: (column) => minus(column('b'), column('a')),
  },
];
const quantityOf = (name) => QUANTITIES.find((quantity) => quantity.name === name) ?? QUANTITIES[0];

const CLIP_WORDS = {
  free: 'The policy term pushes it.',
  low: 'At or below its lower bound: the policy term pushes no more.',
  high: 'At or above its upper bound: the policy term pushes no more.',
  unreachable: 'Pushed towards a bound beyond probability 1.',
  neutral: 'Its advantage is 0: nothing to push.',
  spared: 'Has an advantage, yet is not pushed: a mask of the objective spares it.',
  unscored: 'The reward failed: not trained on.',
  truncated: 'The answer was cut off: not trained on.',
  masked: 'Left out of the loss.',
  environment: 'Written by the environment, not by the policy: not trained on.',
  untrained: 'No pass was made over it.',
};

const STATES = [
  ['reached', 'reached its target or bound'],
  ['clipped', 'clipped: pushed no more'],
  ['wrong', 'moved against its net push'],
  ['dim', 'not trained on'],
];

const OUTCOME_WORDS = { right: 'all right', wrong: 'all wrong', mixed: 'mixed', unscored: 'not scored' };
const LEVELS = { good: ['●', 'Good'], note: ['○', 'Note'], warning: ['▲', 'Warning'] };

/** A rollout's verdict in a glyph and a word: never by colour alone. */
function verdictOf(row) {
  const word = (usual) => (row.verdict === 'ok' ? usual : row.verdict);
  if (row.reward === null) return { glyph: '–', word: word('not scored'), tone: 'none' };
  return row.right
    ? { glyph: '✓', word: 'right', tone: 'right' }
    : { glyph: '✗', word: word('wrong'), tone: 'wrong' };
}
