// Decode the bytes in the page into typed columns, one step at a time and only when it is shown.
'use strict';

const NOISE = 1e-5; // log-probabilities (nats) that differ by no more than this count as equal, as in the metrics
const ROUNDING = 2 ** -13; // pushes have four digits: a difference that is no more than this share of them is 0
const REACHED = 1,
  CLIPPED = 2,
  WRONG = 4,
  DIM = 8;

const pageData = () => JSON.parse(document.getElementById('outdo-data').textContent);

/** Decode text in base64 that gzip has compressed. */
async function unpacked(blob) {
  const text = atob(blob),
    packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).arrayBuffer();
}

async function decodeStep(entry) {
  const buffer = await unpacked(entry.blob);
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return stepOf(header, new Uint8Array(buffer, 4 + length), entry);
}

/** Decode a column; null if it has no values or does not exist.
 *  Numbers are stored as four byte planes, all lowest bytes first: gzip compresses similar neighbouring bytes well. */
function columnOf({ kind, offset, count: size, value }, body, tokens) {
  if (kind === 'constant') return value === null ? null : new Float32Array(size ?? tokens).fill(value);
  if (kind === 'u8') return body.subarray(offset, offset + size);
  const bytes = new Uint8Array(size * 4);
  for (let plane = 0; plane < 4; plane++) {
    const from = offset + plane * size;
    for (let i = 0; i < size; i++) bytes[4 * i + plane] = body[from + i];
  }
  return kind === 'u32' ? new Uint32Array(bytes.buffer) : new Float32Array(bytes.buffer);
}

const cached = (make) => {
  const made = new Map();
  return (key) => {
    if (!made.has(key)) made.set(key, make(key));
    return made.get(key);
  };
};

function stepOf(header, body, entry) {
  const tokens = header.rows.reduce((last, row) => Math.max(last, row.start + row.length), 0);
  const column = cached((name) => {
    if (name === 'net') return netOf(column);
    if (name === 'others') return othersOf(column);
    const kept = header.columns[name], values = kept ? columnOf(kept, body, tokens) : null;
    const base = values && kept.beside ? column(kept.beside) : null; // stored as the difference from another column
    return base ? values.map((value, i) => value + base[i]) : values;
  });
  const piece = (vocab) => header.vocabulary[vocab] ?? [-1, '', null];
  const step = {
    number: header.step,
    why: entry.why,
    groupsInAll: entry.groups_in_all,
    rows: header.rows,
    tokens,
    column,
    piece,
    clipWords: header.clip ?? Object.keys(CLIP_WORDS),
    token: (row, index) => column('token')[row.start + index],
    top: (row, index) => topOf(column, row, index),
    shown: cached((vocab) => tokenText(piece(vocab)[1], piece(vocab)[2])),
    line: cached((vocab) => tokenLine(piece(vocab)[1], piece(vocab)[2])),
    quantity: cached((name) => quantityOf(name).of(column)),
    hasQuantity: (name) => Boolean(step.quantity(name)?.some((value) => !Number.isNaN(value))),
  };
  header.rows.forEach((row, number) => {
    row.number = number;
  });
  const prompts = header.groups.map((group) => group.prompt);
  step.commonPrompt = commonStart(prompts);
  step.text = cached((number) => {
    const { start, length } = header.rows[number];
    return Array.from(column('token').subarray(start, start + length), (vocab) => piece(vocab)[1]).join('');
  });
  step.push = column('net') ?? new Float32Array(tokens);
  step.state = stateOf(step);
  step.groups = header.groups.map((group, index) => groupOf(step, group, index));
  return step;
}

const TOP = 5; // most probable tokens at each token

/**
 * Return the most probable tokens at the place of a token, before and after the step and of the teacher, most probable
 * first: `{ vocab, old, now, teacher }` with log-probabilities, null where a token is not among the first. Null if none
 * is known.
 */
function topOf(column, row, index) {
  const found = new Map();
  const none = { old: null, now: null, teacher: null };
  for (const [name, side] of [['old_top', 'old'], ['new_top', 'now'], ['teacher_top', 'teacher']]) {
    const [tokens, logprobs] = [column(name), column(`${name}_logprobs`)];
    for (let k = 0; k < TOP && tokens && logprobs && row[name] !== undefined; k++) {
      const i = (row[name] + index) * TOP + k;
      if (Number.isNaN(logprobs[i])) continue;
      found.set(tokens[i], { vocab: tokens[i], ...none, ...found.get(tokens[i]), [side]: logprobs[i] });
    }
  }
  const most = (each) => Math.max(...Object.keys(none).map((side) => each[side] ?? -Infinity));
  return found.size ? [...found.values()].sort((a, b) => most(b) - most(a)) : null;
}

/**
 * Return the net push of each token, 0 where it is not known: all terms, summed over the rollouts of the group that
 * have this token at this place. They push the same probability, some up and some down, and it can only follow the sum.
 */
function netOf(column) {
  const net = column('policy_push') && column('net_push'); // the latter is 0 also in a step without an update
  return net && net.map((push) => push || 0);
}

/** Compute the push of the group's other rollouts on the same probability: the net push without the token's own. */
function othersOf(column) {
  const [net, policy, pull] = ['net_push', 'policy_push', 'kl_pull'].map(column);
  if (!net || !policy || !pull) return null;
  return net.map((sum, i) => {
    const others = sum - (policy[i] + pull[i]);
    const size = Math.abs(sum) + Math.abs(policy[i]) + Math.abs(pull[i]);
    return Math.abs(others) <= ROUNDING * size ? 0 : others;
  });
}

/** Compute the flags of every token: what is underlined or dimmed. */
function stateOf({ column, tokens, push, clipWords }) {
  const flags = new Uint8Array(tokens);
  const [old, now, bound, clip, trained] = ['old', 'new', 'bound', 'clip', 'trained'].map(column);
  const low = clipWords.indexOf('low'),
    high = clipWords.indexOf('high'),
    beyond = clipWords.indexOf('unreachable');
  for (let i = 0; i < tokens; i++) {
    if (trained && !trained[i]) {
      flags[i] = DIM;
      continue;
    }
    if (clip && (clip[i] === low || clip[i] === high)) flags[i] |= CLIPPED;
    if (!old || !now) continue;
    const moved = now[i] - old[i],
      way = bound ? bound[i] - old[i] : NaN;
    if (moved * push[i] < 0 && Math.abs(moved) > NOISE) flags[i] |= WRONG;
    // Nine tenths of the way count as reached, as in the metric `target_reached`.
    else if (Math.abs(way) > NOISE && bound[i] <= 0 && clip?.[i] !== beyond && moved / way >= 0.9) flags[i] |= REACHED;
  }
  return flags;
}

/** Return whether two rewards of a group, or one of them and the baseline, differ as float32, which training reads. */
function hasSpread(scored, baseline) {
  if (!scored.length) return false;
  const values = [...scored.map((row) => row.reward), ...(baseline === null ? [] : [baseline])];
  return new Set(values.map(Math.fround)).size > 1;
}

/** Return the kind of a group: by verdicts where every scored answer has one, else by the spread of its rewards. */
function outcomeOf(scored, signal) {
  if (!scored.length) return 'unscored';
  if (scored.some((row) => row.right === null)) return signal ? 'differ' : 'equal';
  const right = scored.filter((row) => row.right).length;
  return right === scored.length ? 'right' : right === 0 ? 'wrong' : 'mixed';
}

/** Return how many first tokens of a completion the page has: of a very long one it has the beginning and the end. */
const shownStart = ({ length, omitted }) => (omitted ? length - Math.floor(length / 3) : length);

/** Return where the tokens end that the page has of the first conversation: later ones do not follow each other. */
const firstEnd = (row) =>
  Math.min(shownStart(row), ...(row.turns ?? []).filter((part) => part.begins).map((part) => part.start));

/** Return the place of a token in the whole completion. */
const placeOf = (row, index) => (index < shownStart(row) ? index : index + row.omitted);

/** Return how many tokens all prompts have in common at their start, such as a system prompt; 0 if only a few. */
function commonStart(prompts) {
  const shortest = Math.min(...prompts.map((prompt) => prompt.length));
  let shared = 0;
  while (shared < shortest && prompts.every((prompt) => prompt[shared] === prompts[0][shared])) shared++;
  return prompts.length > 1 && shared > 12 && shared < shortest ? shared : 0;
}

/** Return, by row number, how many rollouts of the group have exactly the same completion. */
function copiesIn(step, rows) {
  const tokens = step.column('token');
  const keys = rows.map((row) => `${row.omitted}:${tokens.subarray(row.start, row.start + row.length).join()}`);
  const counts = new Map();
  for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1);
  return new Map(rows.map((row, i) => [row.number, counts.get(keys[i])]));
}

function groupOf(step, group, index) {
  const rows = step.rows.filter((row) => row.group === index);
  const scored = rows.filter((row) => row.reward !== null);
  const signal = hasSpread(scored, group.baseline);
  return {
    ...group,
    index,
    rows,
    scored,
    signal,
    outcome: outcomeOf(scored, signal),
    measured: rows.some((row) => row.measured),
    moved: movedShare(step, rows),
    mean: mean(scored.map((row) => row.reward)),
    promptText: group.prompt.map((vocab) => step.piece(vocab)[1]).join(''),
    question: group.prompt
      .slice(step.commonPrompt)
      .map((vocab) => step.piece(vocab)[1])
      .join(''),
    copies: copiesIn(step, rows),
  };
}

/**
 * Compute the metric `moved_as_intended` for some rollouts: the share of the pushed tokens that moved as intended. The
 * weight of a token is |push| (1 - π_old), divided among the rollouts that share it. Null if nothing was measured.
 */
function movedShare({ column, push, state }, rows) {
  const old = column('old'),
    now = column('new'),
    share = column('share');
  if (!old || !now) return null;
  let pushed = 0,
    followed = 0;
  for (const { start, length } of rows) {
    for (let i = start; i < start + length; i++) {
      const moved = now[i] - old[i];
      if (Number.isNaN(moved) || push[i] === 0 || state[i] & DIM) continue;
      const leverage = (share?.[i] ?? 1) * Math.abs(push[i]) * -Math.expm1(old[i]);
      pushed += leverage;
      if (moved * push[i] > 0 && Math.abs(moved) > NOISE) followed += leverage;
    }
  }
  return pushed ? followed / pushed : null;
}

/** Return the mean size of a rollout's moves; null if none is known. */
function meanMove(step, { start, length }) {
  const moved = step
    .quantity('moved')
    ?.subarray(start, start + length)
    .filter((value) => !Number.isNaN(value));
  return moved?.length ? mean(Array.from(moved, Math.abs)) : null;
}
