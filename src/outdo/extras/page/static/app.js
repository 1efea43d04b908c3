// The whole page, from top to bottom.
'use strict';

/**
 * Return the step to open first: the one in the address, else the compared one, the one that moved most, or the last.
 * A served page follows its run, and opens the last one.
 */
function firstStep(run, place, live) {
  const here = run.chosen.map((entry) => entry.step);
  const wanted = [place.step, run.compared?.step, live ? undefined : run.moved_most];
  return wanted.find((step) => here.includes(step)) ?? here.at(-1) ?? null;
}

/** Decode the chosen step when it is first shown, and keep decoded steps. */
function useStep(run, number) {
  const [loaded, setLoaded] = useState({ step: null, error: null });
  const kept = useRef(new Map());
  const entry = run.chosen.find((each) => each.step === number);
  useEffect(() => {
    if (!entry) {
      setLoaded({ step: null, error: null });
      return undefined;
    }
    let over = false;
    if (!kept.current.has(entry)) kept.current.set(entry, decodeStep(entry));
    kept.current.get(entry).then(
      (step) => !over && setLoaded({ step, error: null }),
      (error) => !over && setLoaded({ step: null, error: error.message }),
    );
    return () => {
      over = true;
    };
  }, [entry]);
  return loaded;
}

const nearest = (steps, wanted) =>
  steps.reduce((best, step) => {
    return best === null || Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best;
  }, null);

/** Return which run and step are open, and functions that open others. */
function useOpening(data, place) {
  const [runs, setRuns] = useState(data.runs);
  const [which, setWhich] = useState(Math.min(place.current.run ?? 0, data.runs.length - 1));
  const [number, setNumber] = useState(() => firstStep(runs[which], place.current, data.live));
  const [message, setMessage] = useState('');
  const here = (i) => runs[i].chosen.map((entry) => entry.step);
  const changeRun = (i) => {
    activeToken.set(null);
    place.current = {};
    setWhich(i);
    setNumber(firstStep(runs[i], {}, data.live));
  };
  const fetchStep = async (wanted, i) => {
    if (!runs[i].recorded.includes(wanted)) throw new Error('its tokens are not recorded');
    const entry = await ask(data.live, `step/${wanted}`, { run: i });
    const grow = (run) => ({
      ...run,
      chosen: [...run.chosen.filter(({ step }) => step !== wanted), entry].sort((x, y) => x.step - y.step),
    });
    setRuns((before) => before.map((run, k) => (k === i ? grow(run) : run)));
  };
  const open = async (wanted, about = '', i = which) => {
    try {
      if (!here(i).includes(wanted)) await fetchStep(wanted, i);
    } catch (problem) {
      setMessage(`Step ${wanted} could not be read: ${problem.message}.`);
      return;
    }
    place.current = { step: wanted, by: place.current.by };
    activeToken.set(null);
    setMessage(about);
    setNumber(wanted);
  };
  /** Open the nearest step with tokens, because the file has the tokens of only a few steps. */
  const openNear = (wanted, i = which) => {
    const found = nearest(data.live ? [...here(i), ...runs[i].recorded] : here(i), wanted);
    if (i !== which) changeRun(i);
    if (found === null) setMessage('This page has no tokens of this run.');
    else open(found, Math.abs(found - wanted) < 1 ? '' : `Step ${found} is the nearest one with tokens here.`, i);
  };
  const missing = data.live && runs[which].recorded.length > 0 && !here(which).includes(number);
  useEffect(() => {
    // Open the first step of a run that had none, or a step that the run repeated after a resume.
    if (missing) openNear(number ?? runs[which].recorded.at(-1));
  }, [missing, which]);
  return { runs, setRuns, which, changeRun, number, open, openNear, message };
}

function WhichRun({ runs, which, onChange, label }) {
  if (runs.length < 2) return null;
  const choice = (run, i) => html`<button type="button" aria-pressed=${String(i === which)}
    onClick=${() => onChange(i)}>
    ${plainText(run.name)}</button>`;
  return html`<div class="steps" role="group" aria-label=${label}>${runs.map(choice)}</div>`;
}

function App({ data }) {
  const place = useRef(readLink());
  const { runs, setRuns, which, changeRun, number, open, openNear, message } = useOpening(data, place);
  const [range, setRange] = useState(null);
  const [apart, setApart] = useState(false);
  const lines = useMemo(() => drawnLines(runs, apart), [runs, apart]);
  const follow = useFollowing(data.live, runs, setRuns);
  const run = runs[which];
  const { step, error } = useStep(run, number);
  const chosen = useMemo(() => run.chosen.map((entry) => entry.step), [run.chosen]);
  const tell = (next) => {
    const shown = { run: runs.length > 1 ? which : undefined, step: number ?? undefined };
    place.current = { ...place.current, ...shown, ...next };
    writeLink(place.current);
  };
  const [newest, setNewest] = useState(false);
  const latest = run.recorded.at(-1);
  useEffect(() => {
    if (newest && latest !== undefined && latest !== number) open(latest);
  }, [newest, latest]);
  useKeys({ N: 1, P: -1 }, (way) => {
    const all = data.live ? run.recorded : chosen,
      next = all[all.indexOf(number) + way];
    if (next !== undefined) open(next);
  });
  const showFinding = ({ first, last, run: i }) => {
    setRange([first, last]);
    openNear((first + last) / 2, i);
    goTo('curves');
  };
  const where = number === null ? 'no tokens recorded' : `step ${number} of ${run.metrics.steps.at(-1) ?? number}`;
  const about = data.live ? 'Served on this machine only.' : 'This file is complete: it makes no network requests.';
  return html`<${Bar} run=${run} place=${where} follow=${follow} sections=${sectionsOf(run, step)} />
    <main><h1 class="hidden">${titleOf(runs)}</h1>
      ${runs.length > 1 ? html`<${RunsTable} runs=${runs} lines=${lines} />` : html`<${About} run=${run} />`}
      <${Section} id="curves" number="1"
        title=${runs.length === 1 && run.alive ? 'Does training help so far?' : 'Did training help?'}>
        ${runs.length === 1 && html`<${Answer} run=${run} />`}
        <${Findings} runs=${runs} onFinding=${showFinding} />
        <${HeldOut} runs=${runs} />
        <${Curves} runs=${runs} lines=${lines} apart=${apart} setApart=${setApart} chosen=${chosen} at=${number}
          range=${range} onStep=${openNear} /><//>
      <section id="steps" aria-labelledby="steps-title">
        <h2 id="steps-title" class="small" tabindex="-1">Steps with tokens</h2>
        <${WhichRun} runs=${runs} which=${which} onChange=${changeRun} label="Run whose tokens are shown" />
        <${Steps} run=${run} at=${number} onOpen=${open} canFetch=${Boolean(data.live)} />
        ${data.live && html`<label class="control"><input type="checkbox" data-test="follow-newest" checked=${newest}
          onChange=${(event) => setNewest(event.target.checked)} /><span>Always show the newest step</span></label>`}
        <p class="note" role="status">${message}</p></section>
      ${error && html`<p class="note">Step ${number} could not be read: ${error}.</p>`}
      ${step && html`<${StepView} key=${`${which}/${step.number}`} step=${step} run=${run} place=${place.current}
        onPlace=${tell} />`}
      ${number === null && html`<p class="quiet">No tokens are recorded for this run yet.</p>`}</main>
    <footer><p class="quiet">Log-probabilities and entropies are in nats; numbers have four significant digits.
      ${' '}${about}</p></footer>`;
}

const titleOf = (runs) => (runs.length > 1 ? count(runs.length, 'run') : `Run ${plainText(runs[0].name)}`);

const sectionsOf = (run, step) => [
  'curves',
  ...(step ? ['groups', 'rollouts', 'tree', 'movers'] : []),
  ...(step && comparedIn(run, step) ? ['compared'] : []),
];

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraws.set(redraws.get() + 1));
render(html`<${App} data=${pageData()} />`, document.getElementById('outdo'));
