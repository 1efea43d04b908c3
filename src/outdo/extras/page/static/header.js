// The top of the page: the bar with the theme, the facts about each run, the findings and the list of steps.
'use strict';

const THEMES = ['auto', 'light', 'dark'];
const SECTIONS = [
  ['curves', 'Curves'],
  ['groups', 'Groups'],
  ['rollouts', 'Tokens'],
  ['tree', 'Forks'],
  ['movers', 'Moves'],
  ['compared', 'Compared'],
];

function keptTheme() {
  try {
    return THEMES.includes(localStorage.getItem('outdo-theme')) ? localStorage.getItem('outdo-theme') : 'auto';
  } catch {
    return 'auto'; // some browsers forbid storage for pages opened from disk; then the page uses the system's theme
  }
}

function Theme() {
  const [theme, setTheme] = useState(keptTheme);
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = theme;
    redraws.set(redraws.get() + 1);
    try {
      localStorage.setItem('outdo-theme', theme);
    } catch {
      // as above: the choice lasts only while the page is open
    }
  }, [theme]);
  return html`<label class="control"><span>Theme</span><select data-test="theme" value=${theme}
    onChange=${(event) => setTheme(event.target.value)}>
    ${THEMES.map((name) => html`<option value=${name} selected=${name === theme}>${name}</option>`)}</select></label>`;
}

const calm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

function goTo(section) {
  const target = document.getElementById(section);
  target?.scrollIntoView({ behavior: calm() ? 'auto' : 'smooth', block: 'start' });
  target?.querySelector('h2')?.focus({ preventScroll: true });
}

function Bar({ run, place, follow, sections }) {
  return html`<header class="bar">
    <p class="where"><strong data-test="run-name"><bdi>${plainText(run.name)}</bdi></strong>${' '}
      <span class="quiet">${place}</span></p>
    <nav aria-label="Sections">${SECTIONS.filter(([id]) => sections.includes(id)).map(
      ([id, title]) => html`<button type="button" class="plain" onClick=${() => goTo(id)}>${title}</button>`,
    )}</nav>
    ${follow && html`<span class=${`live ${follow.tone}`} data-test="live-state" role="status">${follow.words}</span>`}
    <${Theme} />
  </header>`;
}

const LEADING_FACTS = ['method', 'model', 'data', 'seed'];

/** Shorten paths to their ends and times to minutes; the tooltip has the full value. */
function shortFact(value) {
  const text = plainText(String(value));
  const isTime = /^\d{4}-\d\d-\d\dT/.test(text),
    isUtc = /(Z|\+00:00)$/.test(text);
  if (isTime) return text.slice(0, 16).replace('T', ' ') + (isUtc ? ' UTC' : '');
  const parts = text.split('/');
  return text.startsWith('/') && parts.length > 3 ? `…/${parts.slice(-2).join('/')}` : text;
}

const fact = ([label, value]) => html`<div><dt>${label}</dt><dd title=${plainText(String(value))}>
  <bdi>${shortFact(value)}</bdi></dd></div>`;
const isLeading = ([label]) => LEADING_FACTS.includes(label);

/** Show the facts about a run; those about the machine and the software in smaller letters. */
function About({ run }) {
  return html`<div class="about"><section aria-label=${`Run ${run.name}`}>
    <p class="run-title"><bdi>${plainText(run.name)}</bdi>
      ${run.state && html`<span class="badge" data-test="run-state">${run.state}</span>`}</p>
    <dl>${run.about.filter(isLeading).map(fact)}</dl>
    <dl class="minor">${run.about.filter((each) => !isLeading(each)).map(fact)}</dl></section></div>`;
}

/** Return what was found, how often, and what to do about it. */
function findingText({ text, advice, spells }) {
  const said = plainText(`${spells > 1 ? `${spells} times: ` : ''}${text} ${advice ?? ''}`).trim();
  return said.charAt(0).toUpperCase() + said.slice(1);
}

const URGENCY = ['warning', 'note', 'good'];

/** Return the place of a finding: a symptom stays with its cause, which is always a warning. */
const urgency = ({ level, cause }) => (cause ? 0 : URGENCY.indexOf(level));

/** List the doctor's findings, warnings first, without the good news that the tiles above show already. */
function Findings({ runs, onFinding }) {
  const findings = runs
    .flatMap((run, i) => run.findings.map((finding) => ({ ...finding, run: i })))
    .filter(({ level, metric }) => level !== 'good' || !ANSWERED.has(metric))
    .sort((a, b) => urgency(a) - urgency(b));
  const title = runs.length > 1 ? 'Findings' : 'Other findings';
  if (!findings.length) return html`<p class="note quiet">No ${title.toLowerCase()}.</p>`;
  const steps = ({ first, last }) => (first === last ? `step ${first}` : `steps ${first}–${last}`);
  return html`<section class="findings" aria-labelledby="findings-title">
    <h3 id="findings-title">${title}</h3>
    <ul>${findings.map(
      (finding) => html`<li class=${`${finding.level}${finding.cause ? ' symptom' : ''}`} data-test="finding">
      <span class="glyph" role="img"
        aria-label=${LEVELS[finding.level]?.[1] ?? finding.level}>${LEVELS[finding.level]?.[0] ?? '○'}</span>
      <button type="button" class="plain jump" onClick=${() => onFinding(finding)}>${steps(finding)}</button>
      <span>${runs.length > 1 && html`<b><bdi>${plainText(runs[finding.run].name)}</bdi>: </b>`}
        ${findingText(finding)}</span></li>`,
    )}</ul></section>`;
}

/**
 * Show the steps with tokens: a button for each step that is worth opening, and a slider over all of them. A served
 * page has all recorded steps on the slider, and fetches one when it is opened.
 */
function Steps({ run, at, onOpen, canFetch }) {
  const here = run.chosen.map((entry) => entry.step),
    all = canFetch ? run.recorded : here,
    place = all.indexOf(at);
  const move = (by) => all[place + by] !== undefined && onOpen(all[place + by]);
  const leading = run.chosen.filter((entry) => entry.why);
  return html`<div class="steps" role="group" aria-label="Steps with tokens">
    ${leading.map(
      (entry) => html`<button type="button" key=${entry.step} data-test="step-button" data-step=${entry.step}
      aria-pressed=${String(entry.step === at)} onClick=${() => onOpen(entry.step)}><b>${entry.step}
        </b> <span>${plainText(entry.why)}</span></button>`,
    )}</div>
    ${all.length > 1 && html`<div class="step-slider" data-test="step-slider">
      <button type="button" aria-label="Previous step" disabled=${place <= 0} onClick=${() => move(-1)}>‹</button>
      <label class="control wide"><span>Step <b>${at ?? UNKNOWN}</b></span><input type="range" min="0"
        max=${all.length - 1} step="1" value=${Math.max(0, place)} aria-valuetext=${`step ${at}`}
        onInput=${(event) => onOpen(all[Number(event.target.value)])} /></label>
      <button type="button" aria-label="Next step" disabled=${place >= all.length - 1}
        onClick=${() => move(1)}>›</button>
      <span class="quiet">${count(all.length, 'step')} with tokens; keys: <kbd>N</kbd> <kbd>P</kbd> next and previous
        step, <kbd>n</kbd> <kbd>p</kbd> group</span></div>`}`;
}

/** Call `act(way)` when a key of `keys` is pressed outside of a text field: `{n: 1, p: -1}`. */
function useKeys(keys, act) {
  const current = useRef(act);
  current.current = act;
  useEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.('input:not([type="range"], [type="checkbox"]), select, textarea');
      if (typing || event.altKey || event.ctrlKey || event.metaKey || !(event.key in keys)) return;
      event.preventDefault();
      current.current(keys[event.key]);
    };
    document.addEventListener('keydown', pressed);
    return () => document.removeEventListener('keydown', pressed);
  }, []);
}
