// The parts of an episode of several turns: who wrote them, what they add up to, and whether they are folded.
'use strict';

const LONG_RESULT = 200; // tokens; what an environment wrote is folded at first if it is longer
const CALLS = 'tools/calls/'; // the beginning of the name of a count of the calls of one tool

/** Return the parts of an episode, each with the tokens `from` to `to` that the page has; none of a single answer. */
function partsOf(row) {
  const shown = (place) => (place <= shownStart(row) ? place : Math.max(shownStart(row), place - row.omitted));
  let conversation = 1;
  return row.turns
    .map((part, number) => ({
      ...part,
      number,
      conversation: part.begins ? ++conversation : conversation,
      byPolicy: part.turn >= 0,
      from: shown(part.start),
      to: shown(row.turns[number + 1]?.start ?? row.length + row.omitted),
      size: (row.turns[number + 1]?.start ?? row.length + row.omitted) - part.start,
    }))
    .filter(({ from, to }) => to > from);
}

const speakerOf = (part) => (part.byPolicy ? `policy, turn ${part.turn + 1}` : 'environment');

/** Say which token a further conversation of an episode follows. */
function followed(step, row, { after }) {
  if (!known(after)) return 'from its beginning';
  const prompt = step.groups[row.group].prompt.length;
  if (after === -1) return 'after the prompt';
  if (after < 0) return `after token ${(prompt + after + 1).toLocaleString('en-US')} of the prompt`;
  return `after token ${(after + 1).toLocaleString('en-US')} above`;
}

/** Build the line above a part: a button that folds it, and the sums over its tokens. */
function partHead(step, row, part, folded) {
  const fact = (name, value, unit = '') =>
    known(value)
      ? [element('span', {}, `${name} `, element('data', { value, 'data-name': name }, signed(value)), unit)]
      : [];
  const button = element(
    'button',
    { type: 'button', class: 'plain fold', 'data-test': 'fold', 'data-row': row.number, 'data-part': part.number },
    element('span', { class: 'glyph', 'aria-hidden': 'true' }, '▾'),
    speakerOf(part),
  );
  button.setAttribute('aria-expanded', String(!folded));
  const text = oneLine(tokensText(step, row, part), 70);
  return element(
    'div',
    { class: `turn ${part.byPolicy ? 'policy' : 'environment'}`, role: 'rowheader', 'data-test': 'turn' },
    button,
    element('span', { class: 'size' }, count(part.size, 'token')),
    ...fact('reward', part.reward),
    ...fact('push', part.push),
    ...fact('moved', part.moved, ' nats'),
    element('bdi', { class: 'preview' }, text),
  );
}

/** Return the text of a part, as far as a line of it needs. */
function tokensText(step, row, { from, to }) {
  let text = '';
  for (let index = from; index < to && text.length < 300; index++) text += step.piece(step.token(row, index))[1];
  return text;
}

/** Show what the tools and the judge of a step cost: calls and seconds, requests, tokens and price. */
function ToolCosts({ run, step }) {
  const place = run.metrics.steps.indexOf(step.number),
    of = (metric) => run.metrics.values[metric]?.[place];
  const names = Object.keys(run.metrics.values).filter((metric) => metric.startsWith(CALLS) && known(of(metric)));
  const tools = names.map((metric) => metric.slice(CALLS.length));
  const costs = tools.map((name) => {
    const [calls, seconds] = [of(CALLS + name), of(`tools/seconds/${name}`)];
    return [name, [count(calls, 'call'), calls > 0 && `${figure(seconds)} s`]];
  });
  if (known(of('judge/requests'))) {
    const [requests, read, written, price] = ['requests', 'input_tokens', 'output_tokens', 'cost'].map((name) =>
      of(`judge/${name}`),
    );
    const tokens = count((read ?? 0) + (written ?? 0), 'token');
    costs.push(['judge', [count(requests, 'request'), tokens, known(price) && `price ${figure(price)}`]]);
  }
  if (!costs.length) return null;
  return html`<dl class="inline costs" data-test="costs" aria-label="Tools of the step">${costs.map(
    ([name, parts]) => html`<div><dt>${oneLine(name, 60)}</dt><dd>${parts.filter(Boolean).join(' · ')}</dd></div>`,
  )}</dl>`;
}

/** Build the line that says where a further conversation of the episode begins. */
const conversationHead = (step, row, part) =>
  element(
    'div',
    { class: 'conversation', role: 'rowheader', 'data-test': 'conversation' },
    `conversation ${part.conversation} of this episode, ${followed(step, row, part)}`,
  );

/** Build the parts of an episode around its cells. `isFolded` says which are folded. */
function partElements(step, row, parts, cells, isFolded) {
  return parts.flatMap((part) => {
    const folded = isFolded(part),
      inside = element('div', { class: 'part', role: 'presentation' }, ...cells.slice(part.from, part.to));
    inside.hidden = folded;
    const head = partHead(step, row, part, folded);
    return [...(part.begins ? [conversationHead(step, row, part)] : []), head, inside];
  });
}

/** Fold or open a part, whose button is given. */
function foldPart(button, folded) {
  button.setAttribute('aria-expanded', String(!folded));
  button.closest('.turn').nextElementSibling.hidden = folded;
}
