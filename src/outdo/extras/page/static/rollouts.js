// One group: its prompt, and the tokens of its rollouts coloured by one quantity.
'use strict';

const ROW_ORDERS = {
  reward: ['reward', () => byNumber((row) => row.reward)],
  worst: ['reward, lowest first', () => byNumber((row) => row.reward, false)],
  length: ['length', () => byNumber((row) => row.length)],
  advantage: ['advantage', () => byNumber((row) => row.advantage)],
  moved: ['mean size of moves', (step) => byNumber((row) => meanMove(step, row))],
  rollout: ['number', () => byNumber((row) => row.rollout, false)],
};

/** Return the requested quantity if the step has it, else the first one that it has. */
function knownQuantity(step, name) {
  const order = [name, 'moved', 'leverage', 'policy_push', 'advantage', 'surprise'];
  return order.find((each) => step.hasQuantity(each)) ?? 'moved';
}

/** Show the prompt; a long one is folded, and a button shows all of it. */
function Prompt({ group }) {
  const [whole, setWhole] = useState(false),
    text = group.promptText,
    long = text.length > 600,
    start = text.length - Math.max(600, Math.min(group.question.length, 1200)); // the question is at the end
  return html`<div class="prompt"><pre tabindex="0" role="region" aria-label="Prompt">
    <bdi>${plainText(whole || !long ? text : `…${text.slice(start)}`)}</bdi></pre>
    ${long && html`<button type="button" class="plain"
      onClick=${() => setWhole(!whole)}>${whole ? 'Show less' : `All ${count(text.length, 'character')}`}</button>`}
    <dl class="inline">${group.answer !== null && html`<div><dt>Expected answer</dt>
      <dd><bdi>${oneLine(group.answer, 300)}</bdi></dd></div>`}
      <div><dt>Mean reward</dt><dd>${figure(group.mean)}</dd></div>${group.baseline !== null && html`<div>
        <dt>Baseline</dt><dd>${figure(group.baseline)}</dd></div>`}
      <div><dt>Moved as intended</dt><dd>${group.measured ? percent(group.moved) : 'not measured'}</dd></div><div>
        <dt>Prompt id</dt><dd><code>${oneLine(String(group.prompt_id), 40)}</code></dd></div></dl></div>`;
}

function Tools({ step, by, setBy, order, setOrder, plain, setPlain, folded, setFolded, turns }) {
  return html`<div class="tools">
    <label class="control"><span>Colour by</span><select data-test="quantity" value=${by}
      onChange=${(event) => setBy(event.target.value)}>
      ${QUANTITIES.filter(({ name }) => step.hasQuantity(name)).map(({ name, title }) => html`<option value=${name}
        selected=${name === by}>${title}</option>`)}</select></label>
    <label class="control"><span>Sort by</span><select value=${order}
      onChange=${(event) => setOrder(event.target.value)}>
      ${Object.entries(ROW_ORDERS).map(([name, [title]]) => html`<option value=${name}
        selected=${name === order}>${title}</option>`)}</select></label>
    <label class="control"><input type="checkbox" data-test="plain" checked=${plain}
      onChange=${(event) => setPlain(event.target.checked)} /><span>Plain text</span></label>
    ${turns && html`<label class="control"><input type="checkbox" data-test="fold-all" checked=${folded}
      onChange=${(event) => setFolded(event.target.checked)} /><span>Fold what environments wrote</span></label>`}
    </div>`;
}

/** Pass what to show to the pane, which is built without Preact (pane.js). `jump` makes it go to a token. */
function Tokens({ step, rows, scale, filter, plain, folded, jump, onPlace, paneRef }) {
  const root = useRef(null),
    pane = paneRef;
  const order = rows.map((row) => row.number).join();
  useLayoutEffect(() => {
    pane.current = new Pane(root.current);
    return () => pane.current.close();
  }, []);
  useLayoutEffect(
    () => pane.current.show({ step, rows, scale, filter, plain, folded, onPlace }),
    [step, order, filter, plain, folded],
  );
  useLayoutEffect(() => pane.current.recolour(scale), [scale]);
  useLayoutEffect(() => {
    if (jump?.step === step && jump.row !== undefined)
      pane.current.focus(jump.row, jump.index, { pinned: true, centred: true });
  }, [jump, step]);
  return html`<div class="pane" role="grid" aria-label="Tokens of the rollouts"
    tabindex=${rows.length ? undefined : '0'} ref=${root}></div>`;
}

function Rollouts({ step, group, shown, by, setBy, filter, jump, onPlace, compared }) {
  const [order, setOrder] = useState('reward'),
    [plain, setPlain] = useState(false),
    [folded, setFolded] = useState(false),
    pane = useRef(null);
  const quantity = knownQuantity(step, by);
  const scale = useMemo(() => scaleOf(step, quantity), [step, quantity]);
  const rows = useMemo(
    () => group.rows.filter((row) => shown.has(row.number)).sort(ROW_ORDERS[order][1](step)),
    [group, shown, order],
  );
  const turns = group.rows.some((row) => row.turns.length);
  const blank = quantity === 'moved' && !group.measured;
  return html`<${Prompt} key=${group.index} group=${group} />
    <${Tools} step=${step} by=${quantity} setBy=${setBy} order=${order} setOrder=${setOrder}
      plain=${plain} setPlain=${setPlain} folded=${folded} setFolded=${setFolded}
      turns=${turns} />
    ${!plain && html`<${Legend} scale=${scale} />`}
    ${turns && html`<p class="note quiet">${TURN_WORDS}</p>`}
    ${blank && html`<p class="note">This group was not measured after the step, so it is not known
      how far its tokens moved. <button type="button" class="plain"
      onClick=${() => setBy('leverage')}>Colour by leverage</button></p>`}
    ${rows.length < group.rows.length &&
    html`<p class="note">${rows.length} of ${count(group.rows.length, 'rollout')} match the search.</p>`}
    <div class="bench"><${Tokens} step=${step} rows=${rows} scale=${scale} filter=${filter} plain=${plain}
      folded=${folded} jump=${jump} onPlace=${onPlace} paneRef=${pane} />
      <${Card} compared=${compared} onClose=${() => closeCard(pane.current)} /></div>`;
}
