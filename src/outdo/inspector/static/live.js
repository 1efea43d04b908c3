// Following a run while it is alive. Nothing is asked for when the page was opened from a file.
'use strict';

const EVERY = 2000,
  AT_MOST = 60_000; // milliseconds

async function ask(live, path, query) {
  const address = new URL(path, new URL(live.url, location.href));
  for (const [name, value] of Object.entries({ token: live.token, ...query })) address.searchParams.set(name, value);
  const reply = await fetch(address, { cache: 'no-store' });
  if (!reply.ok) throw new Error((await reply.text()) || reply.statusText);
  return reply.json();
}

/** A run with what is new appended; steps it already has are taken from the newer answer, as after a resume. */
function grown(run, news) {
  const from = news.metrics.steps[0] ?? Infinity;
  const kept = run.metrics.steps.filter((step) => step < from).length;
  const steps = [...run.metrics.steps.slice(0, kept), ...news.metrics.steps];
  const values = {};
  for (const name of new Set([...Object.keys(run.metrics.values), ...Object.keys(news.metrics.values)])) {
    const before = run.metrics.values[name]?.slice(0, kept) ?? new Array(kept).fill(null);
    values[name] = [...before, ...(news.metrics.values[name] ?? new Array(news.metrics.steps.length).fill(null))];
  }
  const { about, findings, recorded, alive } = news;
  return {
    ...run,
    about,
    findings,
    recorded,
    alive,
    metrics: { steps, values },
    words: { ...run.words, ...news.words },
  };
}

const lastStep = (run) => run.metrics.steps.at(-1) ?? 0;

/** Asks every two seconds, more rarely while the page is hidden or nobody answers. Returns what is to be said of it. */
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
        const news = await Promise.all(
          current.current.map((run, i) => ask(live, 'data', { after: lastStep(run), run: i })),
        );
        if (over) return;
        const alive = news.some((each) => each.alive);
        setRuns((before) => before.map((run, i) => grown(run, news[i])));
        setState(alive ? { words: 'following', tone: 'good' } : { words: 'the run has ended', tone: 'still' });
        wait = document.hidden || !alive ? Math.min(wait * 2, AT_MOST) : EVERY;
      } catch (error) {
        if (over) return;
        wait = Math.min(wait * 2, AT_MOST);
        setState({
          words: `no answer (${error.message}); asking again in ${Math.round(wait / 1000)} s`,
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
