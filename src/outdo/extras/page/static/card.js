// The card: every number of one token.
'use strict';

const at = (step, name, i) => {
  const value = step.column(name)?.[i];
  return known(value) ? value : null;
};

/** Say in one sentence what happened to a token: on top of the card, and read out as the keyboard moves. */
function sentence(step, i) {
  const flags = step.state[i],
    old = at(step, 'old', i),
    now = at(step, 'new', i);
  if (flags & DIM) return 'Not trained on.';
  if (now === null || old === null) return 'Not measured after the step.';
  const way = Math.abs(now - old) <= NOISE ? 'Did not move' : `Moved ${signed(now - old)} nats`;
  if (flags & WRONG) return `${way}, against its net push.`;
  if (flags & REACHED) return `${way}, and reached its ${at(step, 'target', i) === null ? 'bound' : 'target'}.`;
  return `${way}${step.push[i] === 0 ? '; its net push is 0' : ''}.`;
}

const likeIt = (step, i) => Math.round(1 / (at(step, 'share', i) ?? 1)) - 1;

/** Say why a token can move against its own rollout: rollouts with the same beginning push the same probability. */
function shared(step, i) {
  const others = at(step, 'others', i),
    own = step.push[i] - (others ?? 0),
    n = likeIt(step, i);
  if (!n || step.state[i] & DIM) return null;
  const answers = `${count(n, 'other rollout')} with the same beginning`;
  if (own * step.push[i] < 0)
    return `Its own rollout pushes it ${own > 0 ? 'up' : 'down'}, but the push of ${answers} is stronger.`;
  return `It shares its probability with ${answers} and follows the net push.`;
}

/** Say how probable the teacher finds a token, beside the policy before the step; null if no teacher has read it. */
function ofTeacher(step, i) {
  const teacher = at(step, 'teacher', i),
    old = at(step, 'old', i),
    divergence = at(step, 'teacher_divergence', i);
  if (teacher === null || old === null) return null;
  const delta = teacher - old,
    here = probability(teacher),
    far = divergence === null ? '' : ` Over all tokens the two differ by ${figure(divergence)} nats here.`;
  if (Math.abs(delta) <= NOISE) return `The teacher finds this token as likely as the policy did, ${here}.${far}`;
  const finds = `The teacher finds this token ${delta > 0 ? 'more' : 'less'} likely than the policy did`;
  return `${finds}: ${here} against ${probability(old)}, δ = ${signed(delta)} nats.${far}`;
}

/** Draw the log-probabilities on one axis: a line from before to after the step, and the values to compare with. */
function Track({ step, i }) {
  const points = [
    ['ref', 'reference'],
    ['teacher', 'teacher'],
    ['rollout', 'engine'],
    ['bound', 'bound'],
    ['target', 'target'],
    ['a', 'a'],
    ['b', 'b'],
  ]
    .map(([name, title]) => ({ name, title, value: at(step, name, i) }))
    .filter(({ value }) => value !== null && value > -60);
  const old = at(step, 'old', i),
    now = at(step, 'new', i);
  if (old === null) return null;
  const values = [old, now ?? old, ...points.map(({ value }) => value)];
  const low = Math.min(...values),
    high = Math.max(...values),
    room = Math.max(high - low, 0.02) * 0.08;
  const x = (value) => 8 + (264 * (value - low + room)) / (high - low + 2 * room);
  const goal = points.find(({ name }) => name === 'target') ?? points.find(({ name }) => name === 'bound');
  const reference = points.find(({ name }) => name === 'ref');
  const teacher = points.find(({ name }) => name === 'teacher');
  return html`<svg class="track" viewBox="0 0 280 36" role="img" aria-label="Log-probabilities on a line">
    <path class="axis" d="M4 18H276" />
    ${goal && html`<path class="goal" d=${`M${x(goal.value)} 8v20`} />`}
    ${reference && html`<path class="reference" d=${`M${x(reference.value)} 13l5 5-5 5-5-5z`} />`}
    ${teacher && html`<path class="teacher" d=${`M${x(teacher.value)} 12l5 10h-10z`} />`}
    ${now !== null && html`<path class="way" d=${`M${x(old)} 18H${x(now)}`} />`}
    <circle class="old" cx=${x(old)} cy="18" r="4.5" />${now !== null && html`<circle class="new" cx=${x(now)} cy="18"
      r="4.5" />`}
  </svg>`;
}

// The glyphs are those of the drawing above the table, so that the table explains them.
const LOGPROBS = [
  ['old', 'before the step', '○'],
  ['new', 'after the step', '●'],
  ['rollout', 'engine'],
  ['ref', 'reference', '◇'],
  ['teacher', 'teacher', '△'],
  ['target', 'target', '┃'],
  ['bound', 'bound', '┃'],
  ['a', 'a'],
  ['b', 'b'],
];
const OTHERS = [
  ['ratio', 'ratio', fourDigits],
  ['advantages', 'advantage', fourDigitsSigned],
  ['values', 'value', fourDigitsSigned],
  ['entropy', 'entropy', fourDigits],
  ['teacher_divergence', 'divergence', fourDigits],
  ['policy_push', 'policy push', fourDigitsSigned],
  ['kl_pull', 'KL pull', fourDigitsSigned],
  ['others', 'push of others', fourDigitsSigned],
  ['net', 'net push', fourDigitsSigned],
  ['share', 'share in net push', fourDigits],
  ['weight', 'weight', fourDigitsSigned],
];

function Numbers({ step, i, compared }) {
  const title = (name, words) => (compared && compared[name] ? compared[name] : words);
  const old = at(step, 'old', i),
    now = at(step, 'new', i),
    bound = at(step, 'bound', i),
    a = at(step, 'a', i),
    b = at(step, 'b', i);
  const less = (x, y) => (x === null || y === null ? null : x - y);
  const differences = [
    ['moved', 'moved', less(now, old)],
    ['gap', step.column('target') ? 'gap to target' : 'gap to bound', less(bound, now)],
    ['mismatch', 'trainer − engine', less(old, at(step, 'rollout', i))],
    ...(step.column('teacher') ? [['delta', 'δ: teacher − policy', less(at(step, 'teacher', i), old)]] : []),
    ...(step.column('a') ? [['difference', 'b − a', less(b, a)]] : []),
  ];
  const line = (
    name,
    words,
    form,
    value,
    { glyph = '', last = '', rule = false } = {},
  ) => html`<tr class=${rule ? 'rule' : ''} data-name=${name}>
    <th scope="row"><span class="glyph" aria-hidden="true">${glyph}</span>${words}</th>
    <td>${value === null ? UNKNOWN : html`<data value=${value}>${form(value)}</data>`}</td><td>${last}</td></tr>`;
  const likely = (value) => (value > 0 ? 'beyond 1' : probability(value));
  return html`<table class="numbers"><thead><tr><th scope="col"><span class="glyph"></span>log-probability</th>
    <th scope="col">nats</th><th scope="col">probability</th></tr></thead>
    <tbody>${LOGPROBS.filter(([name]) => step.column(name)).map(([name, words, glyph]) =>
      line(name, title(name, words), fourDigits, at(step, name, i), { glyph, last: likely(at(step, name, i)) }),
    )}
    ${differences.map(([name, words, value], k) => line(name, words, fourDigitsSigned, value, { rule: k === 0 }))}
    ${OTHERS.filter(([name]) => step.column(name)).map(([name, words, form], k) =>
      line(name, words, form, at(step, name, i), { rule: k === 0 }))}</tbody></table>`;
}

/** Say which token the teacher finds most probable at a place; nothing if that is the sampled one, or not known. */
function TeacherWrites({ step, row, index }) {
  const top = (step.top(row, index) ?? []).filter((each) => known(each.teacher)),
    [best] = top.sort((a, b) => b.teacher - a.teacher);
  if (!best || step.piece(best.vocab)[0] === step.piece(step.token(row, index))[0]) return null;
  return html`<p class="quiet" data-test="teacher-writes">The teacher would most likely write
    ${' '}<b><bdi>${step.line(best.vocab)}</bdi></b> here: ${probability(best.teacher)}.</p>`;
}

/** List the most probable tokens at the place of a token, of policy and teacher; the sampled one is marked. */
function Alternatives({ step, row, index }) {
  const top = step.top(row, index);
  if (!top) return null;
  const id = step.piece(step.token(row, index))[0];
  const taught = top.some((each) => known(each.teacher));
  const least = (side) => Math.min(...top.map((each) => each[side] ?? Infinity));
  const cell = (each, side) =>
    known(each[side]) ? probability(each[side]) : least(side) < Infinity ? `< ${probability(least(side))}` : UNKNOWN;
  return html`<table class="numbers" data-test="alternatives">
    <thead><tr><th scope="col"><span class="glyph"></span>most probable here</th><th scope="col">before</th>
      <th scope="col">after</th>${taught && html`<th scope="col">teacher</th>`}</tr></thead>
    <tbody>${top.map((each) => {
      const sampled = step.piece(each.vocab)[0] === id;
      return html`<tr class=${sampled ? 'sampled' : ''}><th scope="row"><span class="glyph"
        aria-hidden="true">${sampled ? '▸' : ''}</span><bdi>${step.line(each.vocab)}</bdi>${
          sampled && html`<span class="hidden"> (sampled)</span>`}</th>
        <td>${cell(each, 'old')}</td><td>${cell(each, 'now')}</td>
        ${taught && html`<td>${cell(each, 'teacher')}</td>`}</tr>`;
    })}</tbody></table>`;
}

function Card({ compared, onClose }) {
  const [token, setToken] = useState(activeToken.get()),
    card = useRef(null);
  useLayoutEffect(() => placeUnderToken(card.current, token), [token]);
  useEffect(() => {
    setToken(activeToken.get()); // it may have changed since this was drawn: the address can set it, for example
    return activeToken.watch(setToken);
  }, []);
  useEffect(() => {
    const close = (event) => event.key === 'Escape' && activeToken.get() && onClose();
    document.addEventListener('keydown', close);
    return () => document.removeEventListener('keydown', close);
  }, []);
  if (!token)
    return html`<aside class="card empty" data-test="card" aria-label="Token">
      <p class="quiet">Point at a token, tap it, or move to it with the arrow keys to see all of its
        numbers here. Enter pins it, Esc releases it.</p></aside>`;
  const { step, index } = token,
    row = step.rows[token.row],
    i = row.start + index;
  const [id, piece, hex] = step.piece(step.token(row, index));
  const clip = step.column('clip') && step.clipWords[step.column('clip')[i]];
  const identity = [`id ${id}`, hex && `bytes ${spacedHex(hex)}`, piece === '' && 'part of a character'];
  const words = sentence(step, i);
  return html`<aside class="card" data-test="card" aria-label="Token" ref=${card}>
    <div class="card-head"><span class="piece"><bdi>${step.line(step.token(row, index))}</bdi></span>
      <p>Token ${(placeOf(row, index) + 1).toLocaleString('en-US')} of
        ${' '}${(row.length + row.omitted).toLocaleString('en-US')}${' '}
        ${token.pinned && html`<span class="badge">pinned</span>`}<br />
        <span class="quiet">${identity.filter(Boolean).join(' · ')}
        </span></p>
      <button type="button" class="plain close" aria-label="Close the card" onClick=${onClose}>✕</button></div>
    <p class="says">${words}</p>
    ${shared(step, i) && html`<p class="quiet">${shared(step, i)}</p>`}
    ${ofTeacher(step, i) && html`<p class="quiet" data-test="of-teacher">${ofTeacher(step, i)}</p>`}
    <${TeacherWrites} step=${step} row=${row} index=${index} />
    <${Track} step=${step} i=${i} />
    ${clip && html`<p class="clip"><b>${clip}</b> <span class="quiet">${CLIP_WORDS[clip]}</span></p>`}
    <${Numbers} step=${step} i=${i} compared=${compared} />
    <${Alternatives} step=${step} row=${row} index=${index} />
    <p class="hidden"
      aria-live="polite">${token.byKey ? `${step.line(step.token(row, index))}. ${words} ${clip ?? ''}` : ''}</p>
  </aside>`;
}
