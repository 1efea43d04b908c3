// The tokens of a group as CSV for a spreadsheet.
'use strict';

const CSV_NUMBERS = [
  'old',
  'new',
  'ref',
  'rollout',
  'values',
  'advantages',
  'target',
  'bound',
  'ratio',
  'entropy',
  'policy_push',
  'kl_pull',
  'net',
  'share',
  'weight',
  'a',
  'b',
];

/** Their names in the record: otherwise two columns would be named `rollout`, the number and the log-probability. */
const CSV_NAMES = {
  old: 'old_logprobs',
  new: 'new_logprobs',
  ref: 'ref_logprobs',
  rollout: 'rollout_logprobs',
  a: 'a_logprobs',
  b: 'b_logprobs',
  net: 'net_push',
};

/** Quote a cell; an apostrophe keeps text that starts with = + - @ from running as a formula. Numbers stay. */
function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvOf(step, group) {
  const numbers = CSV_NUMBERS.filter((name) => step.column(name));
  const lines = [
    [
      'step',
      'group',
      'rollout',
      'reward',
      'status',
      'index',
      'token_id',
      'piece',
      'bytes',
      'trained',
      'clip',
      ...numbers.map((name) => CSV_NAMES[name] ?? name),
    ],
  ];
  const trained = step.column('trained'),
    clip = step.column('clip');
  for (const row of group.rows) {
    for (let index = 0; index < row.length; index++) {
      const at = row.start + index,
        [id, piece, hex] = step.piece(step.token(row, index));
      // The page's data have four digits; further digits of the float32 carry no information.
      const values = numbers.map((name) => Number(step.column(name)[at].toPrecision(5)));
      lines.push([
        step.number,
        group.number,
        row.rollout,
        row.reward,
        row.status,
        placeOf(row, index),
        id,
        piece,
        hex,
        trained?.[at],
        clip ? step.clipWords[clip[at]] : null,
        ...values,
      ]);
    }
  }
  return lines.map((line) => line.map(cell).join(',')).join('\r\n');
}

const saveCsv = (step, group) => save(csvOf(step, group), `step_${step.number}_group_${group.number}.csv`);

/** Save text as a file in the reader's folder for downloads. */
function save(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
