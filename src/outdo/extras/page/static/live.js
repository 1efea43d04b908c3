// Follow a run while it is alive. A page opened from a file makes no requests.
'use strict';

const EVERY = 2000,
  AT_MOST = 60_000; // milliseconds
const MOST_POINTS = 4_000; // of a curve; a page starts with at most half of them

async function ask(live, path, query) {
  const address = new URL(path, new URL(live.url, location.href));
  for (const [name, value] of Object.entries({ token: live.token, ...query })) address.searchParams.set(name, value);
  const reply = await fetch(address, { cache: 'no-store' });
  if (!reply.ok) throw new Error((await reply.text()) || reply.statusText);
  return reply.json();
}

const lastStep = (run) => run.metrics.steps.at(-1) ?? 0;

/** Return the first step at which run and news differ; Infinity if all common values are equal. */
function partingStep(run, news) {
  const places = new Map(run.metrics.steps.map((step, i) => [step, i]));
  const differs = (step, i) =>
    places.has(step) &&
    Object.entries(news.metrics.values).some(([name, values]) => {
      const before = run.metrics.values[name]?.[places.get(step)];
      return known(values[i]) && known(before) && before !== values[i];
    });
  return news.metrics.steps.find(differs) ?? Infinity;
}

/**
 * Fetch what is new in a run, including the last known step again: if that step is missing or its values differ, the
 * run was resumed from an earlier step, and everything is fetched again.
 */
async function newsOf(live, run, i) {
  const last = lastStep(run);
  const known = run.metrics.steps.length ? { after: Math.max(0, last - 1) } : {}; // else step 0 may still come
  const news = await ask(live, 'data', { ...known, run: i });
  const went = last > 0 && (news.metrics.steps[0] !== last || partingStep(run, news) <= last);
  if (news.evaluated.join() !== (run.evaluated ?? run.held_out?.steps ?? []).join())
    news.held_out = await ask(live, 'held_out', { run: i });
  if (!went) return news;
  return { ...(await ask(live, 'data', { after: 0, run: i })), held_out: news.held_out, whole: true };
}

/** Halve the points of curves that have become very long: of two steps the later stays, with the last known values. */
function thinned({ steps, values }) {
  if (steps.length <= MOST_POINTS) return { steps, values };
  const kept = steps.map((_, i) => i).filter((i) => i % 2 === (steps.length - 1) % 2);
  const half = (of) => kept.map((i) => (known(of[i]) ? of[i] : (of[i - 1] ?? null)));
  return {
    steps: kept.map((i) => steps[i]),
    values: Object.fromEntries(Object.entries(values).map(([name, of]) => [name, half(of)])),
  };
}

/** Append what is new to a run. After a resume the repeated steps replace the old ones and their tokens. */
function grown(run, news) {
  const from = news.whole ? 1 : (news.metrics.steps[0] ?? Infinity);
  const replaced = news.whole ? Math.min(partingStep(run, news), lastStep(news) + 1) : Infinity;
  const kept = run.metrics.steps.filter((step) => step < from).length;
  const steps = [...run.metrics.steps.slice(0, kept), ...news.metrics.steps];
  const values = {};
  for (const name of new Set([...Object.keys(run.metrics.values), ...Object.keys(news.metrics.values)])) {
    const before = run.metrics.values[name]?.slice(0, kept) ?? new Array(kept).fill(null);
    values[name] = [...before, ...(news.metrics.values[name] ?? new Array(news.metrics.steps.length).fill(null))];
  }
  const { about, findings, examples, reward_parts, recorded, alive, state, evaluated } = news;
  const stays = ({ step }) => step < replaced && recorded.includes(step);
  return {
    ...run,
    about,
    findings,
    examples,
    reward_parts,
    recorded,
    alive,
    state,
    evaluated,
    held_out: news.held_out ?? run.held_out,
    chosen: run.chosen.every(stays) ? run.chosen : run.chosen.filter(stays),
    metrics: thinned({ steps, values }),
    ends: { ...run.ends, ...news.ends },
    words: { ...run.words, ...news.words },
  };
}

/** Poll every two seconds, less often while the page is hidden or gets no response. Return the state to show. */
function useFollowing(live, runs, setRuns) {
  const [state, setState] = useState({ words: 'following', tone: 'good' });
  const current = useRef(runs);
  current.current = runs;
  useEffect(() => {
    if (!live) return undefined;
    let wait = EVERY,
      timer = null,
      over = false;
    const turn = async () => {
      try {
        const news = await Promise.all(current.current.map((run, i) => newsOf(live, run, i)));
        if (over) return;
        const alive = news.some((each) => each.alive);
        setRuns((before) => before.map((run, i) => grown(run, news[i])));
        setState(alive ? { words: 'following', tone: 'good' } : { words: 'the run has ended', tone: 'still' });
        wait = document.hidden || !alive ? Math.min(wait * 2, AT_MOST) : EVERY;
      } catch (error) {
        if (over) return;
        wait = Math.min(wait * 2, AT_MOST);
        setState({
          words: `no response (${error.message}); retrying in ${Math.round(wait / 1000)} s`,
          tone: 'waiting',
        });
      }
      timer = setTimeout(turn, wait);
    };
    const shown = () => {
      if (document.hidden) return;
      clearTimeout(timer);
      wait = EVERY;
      timer = setTimeout(turn, 0);
    };
    timer = setTimeout(turn, EVERY);
    document.addEventListener('visibilitychange', shown);
    return () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', shown);
    };
  }, [live]);
  return live ? state : null;
}
