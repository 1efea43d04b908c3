// The prefix tree of a group's completions: "Where do good and bad completions diverge?" It has the first conversation
// of an episode with several ones.
'use strict';

const SHOWN_DECISIVE = 3,
  LEAF_TOKENS = 28,
  RUN_ENDS = [10, 14];

const rewardOf = (rows) => mean(rows.filter((row) => row.reward !== null).map((row) => row.reward));

/** Build a node: a run of tokens that all of its rows share. `fork` is how much reward its branches separate. */
function treeOf(step, rows, from = 0) {
  const first = rows[0];
  let to = rows.length === 1 ? firstEnd(first) : from;
  // -1 is the end of a completion; another negative number is a part that the page does not have.
  const ending = (row) => (row.omitted && firstEnd(row) === shownStart(row) ? -2 - row.number : -1);
  const next = (row, index) => (index < firstEnd(row) ? step.token(row, index) : ending(row));
  if (rows.length > 1) while (next(first, to) >= 0 && rows.every((row) => next(row, to) === next(first, to))) to++;
  const branches = new Map();
  if (rows.length > 1)
    for (const row of rows) branches.set(next(row, to), [...(branches.get(next(row, to)) ?? []), row]);
  // Rows that are equal to their last token are one leaf, not a fork.
  const forks = branches.size > 1;
  const children = forks
    ? [...branches.values()].map((branch) => (next(branch[0], to) < 0 ? leafOf(branch, to) : treeOf(step, branch, to)))
    : [];
  const node = { rows, from, to, children, mean: rewardOf(rows), fork: 0 };
  node.fork = children.reduce(
    (sum, child) =>
      sum + (known(child.mean) && known(node.mean) ? child.rows.length * Math.abs(child.mean - node.mean) : 0),
    0,
  );
  node.children.sort((a, b) => byNumber((child) => child.mean)(a, b) || b.rows.length - a.rows.length);
  return node;
}

const leafOf = (rows, at) => ({ rows, from: at, to: at, children: [], mean: rewardOf(rows), fork: 0 });

/** Mark the forks that separate most reward, at their branches with the largest and smallest n·(mean − fork mean). */
function markDecisive(root) {
  const nodes = [];
  const walk = (node) => {
    nodes.push(node);
    node.children.forEach(walk);
  };
  walk(root);
  const forks = nodes
    .filter((node) => node.fork > 0)
    .sort((a, b) => b.fork - a.fork)
    .slice(0, SHOWN_DECISIVE);
  const carried = (node) => (child) => (known(child.mean) ? child.rows.length * (child.mean - node.mean) : 0);
  for (const node of forks) {
    const branches = [...node.children].sort(byNumber(carried(node)));
    for (const child of [branches[0], branches.at(-1)])
      child.decisive = { share: node.fork / root.rows.length, better: child === branches[0] };
  }
  return root;
}

/** Return the lines to show, without the children of closed nodes. */
function linesOf(node, closed, path = '0', level = 1, place = [1, 1]) {
  const line = { node, path, level, place, open: node.children.length > 0 && !closed.has(path) };
  return [
    line,
    ...(line.open
      ? node.children.flatMap((child, i) =>
          linesOf(child, closed, `${path}.${i}`, level + 1, [i + 1, node.children.length]),
        )
      : []),
  ];
}

/** Show the tokens of a node in short: its beginning, and for a shared run also its end, before the fork. */
function RunText({ step, node }) {
  const row = node.rows[0],
    length = node.to - node.from;
  const text = (from, to) =>
    Array.from(
      { length: to - from },
      (_, i) => html`<span class="token">${step.line(step.token(row, from + i))}</span>`,
    );
  if (length === 0) return html`<span class="quiet">${node.from === 0
    ? 'from the first token' : row.omitted ? 'goes on' : 'ends here'}</span>`;
  if (!node.children.length) {
    const rest = [
      length + row.omitted > LEAF_TOKENS && `+ ${count(row.length + row.omitted - node.from - LEAF_TOKENS, 'token')}`,
      row.finish !== 'stop' && 'truncated',
    ].filter(Boolean);
    return html`<span class="text leaf">${text(node.from, Math.min(node.to, node.from + LEAF_TOKENS))}</span>
      <span class="quiet rest">${rest.join(', ')}</span>`;
  }
  const [head, tail] = RUN_ENDS;
  if (length <= head + tail + 2) return html`<span class="text">${text(node.from, node.to)}</span>`;
  return html`<span class="text">${text(node.from, node.from + head)}
    <span class="quiet"> … ${count(length - head - tail, 'token')} … </span>
    ${text(node.to - tail, node.to)}</span>`;
}

function Branch({ step, line, total, base, active, onActive, onToggle }) {
  const { node, path, level, place, open } = line,
    gap = node.mean - base;
  const tone = !known(node.mean) || Math.abs(gap) < 1e-9 ? '' : gap > 0 ? 'better' : 'worse';
  return html`<div class="branch" role="treeitem" data-test="branch" data-path=${path} aria-level=${level}
    aria-posinset=${place[0]} aria-setsize=${place[1]}
      aria-expanded=${node.children.length ? String(open) : undefined} aria-selected=${String(active)}
        tabindex=${active ? '0' : '-1'} onFocus=${() => onActive(path)} onClick=${() => onToggle(line)}>
    <span class="count"><i style=${{ width: `${(2.6 * node.rows.length) / total}rem` }}></i><b>${node.rows.length}</b>
      </span>
    <span class=${`mean ${tone}`}>${figure(node.mean, 3)}<span
      aria-hidden="true">${{ better: ' ▲', worse: ' ▼' }[tone] ?? ''}</span></span>
    <span class="run" style=${{ '--level': level - 1 }}><span class="fold"
      aria-hidden="true">${node.children.length ? (open ? '▾' : '▸') : ''}</span>
      ${node.decisive && html`<span class=${`decisive ${node.decisive.better ? 'better' : 'worse'}`}
        data-test="decisive"
        title=${`This fork separates ${figure(node.decisive.share)} of reward per rollout`}>
        ◆ ${figure(node.decisive.share, 2)}</span>`}
      <${RunText} step=${step} node=${node} /></span></div>`;
}

/** Show the prefix tree of a group, or the words that go with its rewards if the tree would only have single leaves. */
function Forks({ step, group, onJump }) {
  const root = useMemo(() => markDecisive(treeOf(step, group.rows)), [group]);
  return onlySingletons(root)
    ? html`<${WordOdds} step=${step} group=${group} />`
    : html`<${Tree} step=${step} group=${group} root=${root} onJump=${onJump} />`;
}

function Tree({ step, group, root, onJump }) {
  const [closed, setClosed] = useState(new Set()),
    [active, setActive] = useState('0'),
    box = useRef(null);
  useEffect(() => {
    setClosed(new Set());
    setActive('0');
  }, [group]);
  const lines = linesOf(root, closed);
  const fold = (path, close) =>
    setClosed((before) => {
      const after = new Set(before);
      if (close) after.add(path);
      else after.delete(path);
      return after;
    });
  const toggle = ({ node, path, open }) =>
    node.children.length ? fold(path, open) : onJump(node.rows[0], Math.min(node.from, node.rows[0].length - 1));
  const go = (path) => box.current.querySelector(`[data-path="${path}"]`)?.focus();
  const onKey = (event) => {
    const i = lines.findIndex((line) => line.path === active),
      line = lines[i] ?? lines[0];
    const parent = line.path.slice(0, line.path.lastIndexOf('.'));
    const act = {
      ArrowDown: () => go(lines[i + 1]?.path),
      ArrowUp: () => go(lines[i - 1]?.path),
      Home: () => go('0'),
      End: () => go(lines.at(-1).path),
      ArrowRight: () => (line.open ? go(lines[i + 1].path) : line.node.children.length && fold(line.path, false)),
      ArrowLeft: () => (line.open ? fold(line.path, true) : parent && go(parent)),
      Enter: () => onJump(line.node.rows[0], Math.max(0, Math.min(line.node.from, line.node.rows[0].length - 1))),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const decisive = lines.some((line) => line.node.decisive);
  const marks = decisive
    ? html`<b>◆ A decisive token</b> begins a branch at which good and bad completions diverge; next to it stands the
      reward per rollout that its fork separates.`
    : 'No fork of this group separates rewards.';
  return html`<p class="note"><span class="quiet">Each line: how many completions share these tokens, and
      their mean reward, ▲ above or ▼ below the group mean of ${figure(root.mean)}. ${marks}
      ${' '}Enter, or a click on a line without branches, opens its token above.</span></p>
    <details class="how"><summary>How decisive tokens are found</summary><p class="note">The ${SHOWN_DECISIVE} forks
      with the largest Σ n·|branch mean − fork mean| ÷ group size have two marked branches each: the one with the
      largest n·(branch mean − fork mean) and the one with the smallest. A branch with one completion tells
      little.</p></details>
    <div class="scroller tree" role="tree" aria-label="Prefix tree of the completions" data-test="tree" ref=${box}
      onKeyDown=${onKey}>
      ${lines.map((line) => html`<${Branch} key=${line.path} step=${step} line=${line} total=${group.rows.length}
        base=${root.mean} active=${line.path === active} onActive=${setActive} onToggle=${toggle} />`)}</div>`;
}
