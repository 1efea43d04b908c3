// Everything that the page shows about one step.
'use strict';

/** Return the group to open first: the one in the address, else a measured one whose rewards differ. */
function firstGroup(step, place) {
  const named = step.groups.find((group) => place.step === step.number && group.number === place.group);
  const measured = step.groups.filter((group) => group.measured);
  return (named ?? measured.find((group) => group.signal) ?? measured[0] ?? step.groups[0])?.index ?? null;
}

function Section({ id, number, title, children }) {
  return html`<section id=${id} aria-labelledby=${`${id}-title`}><h2 id=${`${id}-title`} tabindex="-1">
    <span class="ordinal" aria-hidden="true">${number}</span> ${title}</h2>${children}</section>`;
}

/** Return the two checkpoints that scored the step's text, or null. */
const comparedIn = (run, step) => (run.compared?.step === step.number && step.column('a') ? run.compared : null);

/** Show the sections of one step: groups, tokens, forks, moves, comparison. */
function StepView({ step, run, place, onPlace }) {
  const [index, setIndex] = useState(() => firstGroup(step, place));
  const [filter, setFilter] = useState(NO_FILTER);
  const [order, setOrder] = useState('signal');
  const [by, setBy] = useState(quantityOf(place.by).name);
  const [jump, setJump] = useState(() => jumpTo(step, place));
  const shown = useMemo(() => shownRows(step, filter), [step, filter]);
  const group = step.groups[index];
  const visible = useMemo(() => visibleGroups(step, shown, order), [step, shown, order]);
  const where = useRef({ group: group?.number });
  const tell = (more) => {
    Object.assign(where.current, more);
    onPlace({ ...where.current });
  };
  useEffect(() => tell({ by }), [by]);
  const open = (next) => {
    setIndex(next);
    setJump(null);
    tell({ group: step.groups[next].number, rollout: undefined, token: undefined });
  };
  useKeys({ n: 1, p: -1 }, (way) => {
    const place = visible.findIndex((each) => each.index === index) + way;
    if (visible[place]) open(visible[place].index);
  });
  const onToken = useCallback(
    (row, token) => tell({ group: step.groups[row.group].number, rollout: row.rollout, token }),
    [step],
  );
  const onJump = (row, token) => {
    if (!shown.has(row.number)) setFilter(NO_FILTER); // an old search must not hide the target of the jump
    setIndex(row.group);
    setJump({ step, row: row.number, index: token });
    document.getElementById('rollouts').scrollIntoView({ block: 'start' });
  };
  const compared = comparedIn(run, step);
  const below = useMemo(
    () => group && html`<${Below} step=${step} group=${group} compared=${compared} onJump=${onJump} setBy=${setBy} />`,
    [step, group, compared, shown], // a change of the colours does not redraw this part
  );
  if (!group) return html`<p class="quiet">No rollout of this step is recorded.</p>`;
  return html`<${Section} id="groups" number="2" title="In which groups do rewards differ?">
      <${Search} step=${step} filter=${filter} setFilter=${setFilter} shown=${shown} />
      <${GroupList} step=${step} groups=${visible} order=${order} setOrder=${setOrder} open=${index}
        onOpen=${open} />
      <${ToolCosts} run=${run} step=${step} /><//>
    <${Section} id="rollouts" number="3" title=${`What happened to the tokens of group ${group.number}?`}>
      <${Rollouts} step=${step} group=${group} shown=${shown} by=${by} setBy=${setBy} filter=${filter} jump=${jump}
        onPlace=${onToken} compared=${compared} /><//>
    ${below}`;
}

/** Show the sections below the tokens, with links back to tokens. */
function Below({ step, group, compared, onJump, setBy }) {
  return html`<${Section} id="tree" number="4" title="Where do good and bad completions diverge?">
      <${Forks} step=${step} group=${group} onJump=${onJump} /><//>
    <${Section} id="movers" number="5" title="What moved most, and what moved the wrong way?">
      <${Movers} step=${step} onJump=${onJump} /><//>
    ${compared && html`<${Section} id="compared" number="6" title="The same text under two checkpoints">
      <${Compared} key=${group.index} step=${step} group=${group} compared=${compared} onJump=${onJump}
        setBy=${setBy} /><//>`}`;
}

/** Return the token that the address names, or null. */
function jumpTo(step, place) {
  const group = place.step === step.number && step.groups.find((each) => each.number === place.group);
  const row = group && known(place.rollout) && group.rows.find((each) => each.rollout === place.rollout);
  return row ? { step, row: row.number, index: place.token ?? 0 } : null;
}
