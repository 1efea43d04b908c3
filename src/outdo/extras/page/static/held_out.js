// Held-out answers: any two evaluations of any run, question by question, and the answers of all runs side by side.
'use strict';

const GLYPHS = { fixed: '▲', broken: '▼', same: '=' };

/** Return the words for the kinds of questions: of one run they changed, of two runs they differ. */
function wordsOf(a, b, runs) {
  const [one, other] = [a, b].map(({ run }) => plainText(runs[run].name)),
    right = a.by === 'right',
    test = right ? "McNemar's exact test" : 'exact sign test';
  if (a.run !== b.run)
    return {
      test,
      changed: 'differ',
      fixed: right ? `right only in ${other}` : `better reward in ${other}`,
      broken: right ? `right only in ${one}` : `better reward in ${one}`,
      same: 'do not differ',
    };
  return {
    test,
    changed: 'changed',
    fixed: right ? 'became right' : 'got a better reward',
    broken: right ? 'became wrong' : 'got a worse reward',
    same: 'did not change',
  };
}
const BRIEF = 60; // characters of an answer that is not opened
const LONG_QUESTION = 90; // characters: a longer one is shown whole when it is opened
const FEW_ANSWERS = 6,
  MORE_ANSWERS = 40; // how many answers are listed at first, and how many more at a time
const LEFT_OUT = 'This answer is not in the file; outdo inspect RUN --compare A B has the answers of two evaluations.';

const probabilityOf = (p) => (p < 0.0001 ? 'p < 0.0001' : `p = ${figure(p, 2)}`);

/** Compute the p-value of McNemar's exact test: min(1, 2 P(X <= min(fixed, broken))), X ~ Bin(fixed + broken, 1/2). */
function mcnemar(fixed, broken) {
  const n = fixed + broken;
  let log = -n * Math.LN2, // of C(n, k) / 2^n
    sum = 0;
  for (let k = 0; k <= Math.min(fixed, broken); k++) {
    sum += Math.exp(log);
    log += Math.log((n - k) / (k + 1));
  }
  return Math.min(1, 2 * sum);
}

/** Decode the evaluations of all runs: {run, step, by, ids, questions, values, texts} of each. */
function useEvaluations(runs) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    let over = false;
    const decoded = runs.map(async ({ held_out: kept }, run) => {
      if (!kept) return [];
      const text = new TextDecoder().decode(await unpacked(kept.blob)),
        { by, ids, questions, values, texts, reads } = JSON.parse(text);
      const places = new Map(ids.map((id, i) => [id, i]));
      const of = (k) => ({ by, ids, places, questions, values: values[k], texts: texts[k], reads: reads?.[k] });
      return kept.steps.map((step, k) => ({ run, step, ...of(k) }));
    });
    Promise.all(decoded).then((each) => over || setFound(each.flat()));
    return () => {
      over = true;
    };
  }, runs.map((run) => run.held_out));
  return found;
}

/** Return whether two evaluations have the same question at two places, as far as the page has its text. */
const sameQuestion = (a, i, b, j) =>
  a.questions[i] === null || b.questions[j] === null || a.questions[i][0] === b.questions[j][0];

/** Pair the answers of two evaluations by question, if both have a verdict (or a reward). */
function pairedAnswers(a, b) {
  if (a.by !== b.by) return [];
  return a.ids.flatMap((id, i) => {
    const j = b.places.get(id);
    if (j === undefined || !known(a.values[i]) || !known(b.values[j]) || !sameQuestion(a, i, b, j)) return [];
    const change = b.values[j] - a.values[i];
    return [{
      id, change, kind: change > 0 ? 'fixed' : change < 0 ? 'broken' : 'same',
      question: a.questions[i] ?? b.questions[j], values: [a.values[i], b.values[j]], texts: [a.texts[i], b.texts[j]],
      reads: [a.reads?.[i], b.reads?.[j]],
    }];
  });
}

const valueText = (by, value) =>
  !known(value) ? 'no verdict' : by === 'right' ? (value ? '✓ right' : '✗ wrong') : `reward ${figure(value)}`;

function AnswerText({ title, text, by, value, reading, most }) {
  return html`<div><h4>${title} <span class="quiet">${valueText(by, value)}</span></h4>
    ${reading && html`<${ReadQuestion} reading=${reading} most=${most} />`}
    <pre><bdi>${text === null ? html`<span class="quiet">${LEFT_OUT}</span>` : plainText(text)}</bdi></pre></div>`;
}

/** Return whole words of an answer: its end if there is a reference, because that decides; else its beginning. */
function brief(text, reference) {
  const line = oneLine(text, text.length);
  if (line.length <= BRIEF) return line;
  if (reference) return `…${line.slice(-BRIEF - 1).replace(/^\S* /, '')}`;
  return `${line.slice(0, BRIEF + 1).replace(/ \S*$/, '')}…`;
}

/** Show one question: its text and some words of each answer, and all of them when it is opened. */
function Question({ question, glyph, word, kind, answers, by }) {
  const briefly = answers.map(({ text }) => (text === null ? '…' : brief(text, question?.[1])));
  const different = [...new Set(briefly)],
    times = (words) => (answers.length > 2 ? ` × ${briefly.filter((each) => each === words).length}` : '');
  const short = different.map((words) => words + times(words)).join(answers.length > 2 ? ' · ' : ' → ');
  const most = mostRead(answers.map(({ reading }) => reading));
  return html`<details class=${`changed ${kind}`} data-test="held-out-answer"><summary>
      <span aria-hidden="true">${glyph}</span> <span class="hidden">${word}: </span>
      <bdi>${question === null ? 'A question that is not in the file' : oneLine(question[0], LONG_QUESTION)}</bdi>${' '}
      <span class="quiet">${short}</span></summary>
    ${question !== null && question[0].length > LONG_QUESTION &&
      html`<pre data-test="whole-question"><bdi>${plainText(question[0])}</bdi></pre>`}
    <div class="answers">${answers.map(({ title, text, value, reading }) => html`<${AnswerText} title=${title}
      text=${text} by=${by} value=${value} reading=${reading} most=${most} />`)}</div>
    ${answers.some(({ reading }) => reading) && html`<${ReadLegend} />`}
    ${question?.[1] && html`<p class="quiet">Expected: <bdi>${oneLine(question[1], 300)}</bdi></p>`}</details>`;
}

/** List questions, a few at first. */
function Questions({ found, render: draw }) {
  const [shown, setShown] = useState(FEW_ANSWERS);
  return html`${found.slice(0, shown).map(draw)}
    ${shown < found.length && html`<p><button type="button" class="plain" data-test="more-answers"
      onClick=${() => setShown(shown + MORE_ANSWERS)}>Show ${Math.min(MORE_ANSWERS, found.length - shown)} more of
      ${' '}${found.length}</button></p>`}`;
}

const nameOf = (runs, { run, step }) =>
  `${runs.length > 1 ? `${plainText(runs[run].name)}, ` : ''}${when({ step })}`;

function Choice({ label, test, evaluations, runs, at, onChange }) {
  return html`<label class="control"><span>${label}</span><select data-test=${test} value=${at}
    onChange=${(event) => onChange(Number(event.target.value))}>${evaluations.map(
      (each, i) => html`<option value=${i} selected=${i === at}>${nameOf(runs, each)}</option>`)}</select></label>`;
}

/** Return the indices of the two evaluations to compare first: of one run its first and last, of several their last. */
function firstPair(runs, evaluations) {
  const at = (run, step) => evaluations.findIndex((each) => each.run === run && each.step === step);
  const [run] = evaluations.map((each) => each.run);
  if (runs.length === 1) return runs[0].held_out.pair.map((step) => Math.max(0, at(0, step)));
  const last = (i) => evaluations.findLastIndex((each) => each.run === i);
  const other = evaluations.find((each) => each.run !== run)?.run;
  return other === undefined ? [at(run, evaluations[0].step), last(run)] : [last(run), last(other)];
}

/** Return two evaluations of one run in the order in which they were made. */
const inOrder = (a, b) => (a.run === b.run && a.step > b.step ? [b, a] : [a, b]);

/** Compare two evaluations: how many answers became right or wrong, McNemar's test, and the answers. */
function Pair({ a, b, runs }) {
  const pairs = useMemo(() => pairedAnswers(a, b), [a, b]),
    of = (kind) => pairs.filter((each) => each.kind === kind),
    [fixed, broken] = [of('fixed').length, of('broken').length],
    [kind, setKind] = useState('changed');
  const words = wordsOf(a, b, runs);
  if (!pairs.length)
    return html`<p class="note" data-test="paired">No question has a result in both evaluations.</p>`;
  const p = mcnemar(fixed, broken),
    decided = p < 0.05 ? 'The difference is hardly chance' : 'The difference can be chance';
  const kinds = [
    ['changed', fixed + broken], ['fixed', fixed], ['broken', broken], ['same', pairs.length - fixed - broken],
  ];
  const found = pairs
    .filter((each) => each.kind === kind || (kind === 'changed' && each.kind !== 'same'))
    .sort((x, y) => (x.kind === y.kind ? Math.abs(y.change) - Math.abs(x.change) : x.kind === 'fixed' ? -1 : 1));
  const titles = [a, b].map((each) => nameOf(runs, each));
  const draw = (each) => html`<${Question} key=${each.id} question=${each.question} kind=${each.kind} by=${a.by}
    glyph=${GLYPHS[each.kind]} word=${words[each.kind]}
    answers=${titles.map((title, k) => ({
      title, text: each.texts[k], value: each.values[k], reading: each.reads[k],
    }))} />`;
  return html`<p class="note" data-test="paired">Of ${count(pairs.length, 'question')}: <b>${fixed}</b>
      ${' '}${words.fixed}, <b>${broken}</b> ${words.broken}, ${pairs.length - fixed - broken} ${words.same}.
      ${' '}<span class="quiet">${decided}: ${probabilityOf(p)} (${words.test}, n = ${fixed + broken}
      ${' '}that ${words.changed}).</span></p>
    <div class="steps" role="group" aria-label="Answers to list">${kinds.map(([name, number]) => html`<button
      type="button" data-test="answers-of" data-kind=${name} aria-pressed=${String(kind === name)}
      onClick=${() => setKind(name)}>${words[name]} <b>${number}</b></button>`)}</div>
    <${Questions} key=${kind} found=${found} render=${draw} />`;
}

/** Show the answers of all runs to the same questions: those that the runs answer differently first. */
function SideBySide({ evaluations, runs }) {
  const last = runs.map((_, i) => evaluations.findLast((each) => each.run === i)).filter(Boolean);
  const same = last.every(({ by }) => by === last[0].by);
  const found = useMemo(() => (same ? commonQuestions(last) : []), [evaluations]);
  if (last.length < 2 || !found.length) return null;
  const by = last[0].by,
    sum = (values) => values.reduce((total, value) => total + value, 0);
  const all = found.filter(({ values }) => values.every((value) => value === 1)).length,
    none = found.filter(({ values }) => values.every((value) => value === 0)).length,
    differ = found.filter(({ values }) => new Set(values).size > 1);
  const draw = ({ id, question, values, texts }) => html`<${Question} key=${id} question=${question} by=${by}
    kind="same" glyph=${by === 'right' ? values.map((value) => (value ? '✓' : '✗')).join('') : figure(mean(values))}
    word=${by === 'right' ? `${sum(values)} of ${values.length} right` : 'mean reward'}
    answers=${last.map((each, k) => ({ title: nameOf(runs, each), text: texts[k], value: values[k] }))} />`;
  return html`<section data-test="side-by-side" aria-labelledby="side-title">
    <h3 id="side-title">The same questions, answered by each run after its last evaluation</h3>
    <p class="note">Of ${count(found.length, 'question')}, ${by === 'right'
      ? `all ${last.length} runs answer ${all} rightly and ${none} wrongly; `
      : ''}<b>${differ.length}</b> they answer differently. <span class="quiet">The marks are in the order of the runs:
      ${' '}${last.map((each) => plainText(runs[each.run].name)).join(', ')}.</span></p>
    <${Questions} found=${differ.sort((x, y) => sum(x.values) - sum(y.values))} render=${draw} /></section>`;
}

/** Return the questions that all evaluations have, with the value and the text of each answer. */
function commonQuestions(evaluations) {
  const [first, ...others] = evaluations;
  return first.ids.flatMap((id, i) => {
    const places = [i, ...others.map((each) => each.places.get(id))];
    const isCommon = places.every(
      (place, k) =>
        place !== undefined && known(evaluations[k].values[place]) && sameQuestion(first, i, evaluations[k], place),
    );
    if (!isCommon) return [];
    const of = (name) => places.map((place, k) => evaluations[k][name][place]);
    const question = of('questions').find((each) => each !== null) ?? null;
    return [{ id, question, values: of('values'), texts: of('texts') }];
  });
}

function HeldOut({ runs }) {
  const evaluations = useEvaluations(runs),
    [chosen, setChosen] = useState(null);
  if (evaluations.length < 2) return null;
  const pair = (chosen ?? firstPair(runs, evaluations)).map((i) => Math.min(i, evaluations.length - 1)),
    [a, b] = inOrder(...pair.map((i) => evaluations[i]));
  return html`<section class="held-out" data-test="held-out" aria-labelledby="held-out-title">
    <h3 id="held-out-title">Held-out answers, compared question by question</h3>
    <div class="tools"><${Choice} label="Compare" test="compare-a" evaluations=${evaluations} runs=${runs} at=${pair[0]}
        onChange=${(i) => setChosen([i, pair[1]])} />
      <${Choice} label="with" test="compare-b" evaluations=${evaluations} runs=${runs} at=${pair[1]}
        onChange=${(i) => setChosen([pair[0], i])} /></div>
    <${Pair} key=${pair.join()} a=${a} b=${b} runs=${runs} />
    ${runs.length > 2 && html`<${SideBySide} evaluations=${evaluations} runs=${runs} />`}</section>`;
}
