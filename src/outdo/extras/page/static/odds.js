// The words of a group that occur more often in completions with a high reward, or with a low one. It takes the place
// of the prefix tree where no two completions have more than their first tokens in common.
'use strict';

const SHOWN_WORDS = 8;
const WORD = /[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]+/gu;

/**
 * Return the log-odds of each word: how much more often it is in the texts with a reward above their mean.
 *
 * `rows` are [text, reward]; rewards equal to the mean count on neither side. A text counts once for each of its words.
 * With a of A high and b of B low texts, log-odds = log((a + ½) / (A − a + ½)) − log((b + ½) / (B − b + ½)), and the
 * variance of their error is about 1/(a + ½) + 1/(A − a + ½) + 1/(b + ½) + 1/(B − b + ½) (Haldane and Anscombe). Words
 * that are in all texts or in none say nothing and are left out. Those that are farthest from 0 in errors come first.
 */
function wordOdds(rows) {
  const middle = mean(rows.map(([, reward]) => reward)),
    near = 1e-9 * Math.max(1, Math.abs(middle));
  const sides = [1, -1].map((sign) => rows.filter(([, reward]) => sign * (reward - middle) > near));
  const counts = new Map();
  sides.forEach((side, i) => {
    for (const [text] of side) {
      for (const word of new Set(text.match(WORD) ?? [])) {
        if (!counts.has(word)) counts.set(word, [0, 0]);
        counts.get(word)[i]++;
      }
    }
  });
  const [A, B] = sides.map((side) => side.length);
  const words = [...counts].filter(([, [a, b]]) => a + b < A + B).map(([word, [a, b]]) => {
    const cells = [a + 0.5, A - a + 0.5, b + 0.5, B - b + 0.5];
    const odds = Math.log(cells[0] / cells[1]) - Math.log(cells[2] / cells[3]);
    const error = Math.sqrt(cells.reduce((sum, cell) => sum + 1 / cell, 0));
    return { word, high: a, low: b, odds, error };
  });
  words.sort((x, y) => Math.abs(y.odds) / y.error - Math.abs(x.odds) / x.error || (x.word < y.word ? -1 : 1));
  return { words, high: A, low: B };
}

/** Return whether no two rows stay together after their first fork: a tree of them shows nothing. */
const onlySingletons = (root) =>
  root.children.length > 1 && root.children.every((child) => child.rows.length === 1 && !child.children.length);

function WordLine({ each, high, low }) {
  const { word, odds, error } = each;
  const clear = Math.abs(odds) > 2 * error;
  return html`<tr><th scope="row"><bdi>${plainText(word)}</bdi></th>
    <td class="number">${each.high} of ${high}</td><td class="number">${each.low} of ${low}</td>
    <td class=${`number ${odds > 0 ? 'better' : 'worse'}`}>${signed(odds, 2)}</td>
    <td class="number">${figure(error, 2)}</td>
    <td>${clear ? 'more than two errors' : html`<span class="quiet">may be chance</span>`}</td></tr>`;
}

function WordOdds({ step, group }) {
  const { words, high, low } = useMemo(
    () => wordOdds(group.scored.map((row) => [step.text(row.number), row.reward])),
    [step, group],
  );
  const sides = [1, -1].map((sign) => words.filter(({ odds }) => sign * odds > 0).slice(0, SHOWN_WORDS));
  const cut = group.rows.some((row) => row.omitted);
  if (!sides.some((side) => side.length))
    return html`<p class="note" data-test="no-odds">The completions share only their first tokens, and no word is in
      more completions of a high reward than of a low one.</p>`;
  return html`<p class="note">The completions share only their first tokens, so a prefix tree would show nothing. Below
      are the words that are in more completions with a reward above the group mean of ${figure(group.mean)}
      ${' '}(n = ${high}) than below it (n = ${low}), and the reverse. ${cut && html`<b>The middle of long completions
      is not on this page: its words are missing.</b> `}<span class="quiet">With so few completions many words differ by
      chance, and a word need not be the reason for the reward.</span></p>
    <details class="how"><summary>How the log-odds are computed</summary><p class="note">A completion counts once for
      each word. With a of A completions above the mean and b of B below it: log((a + ½) ÷ (A − a + ½)) −
      log((b + ½) ÷ (B − b + ½)); its error is the root of the sum of 1 ÷ each of these four terms.</p></details>
    <div class="scroller" tabindex="0" role="region" aria-label="Words by reward"><table data-test="word-odds">
      <thead><tr><th scope="col">Word</th><th scope="col" class="number">Above the mean</th>
        <th scope="col" class="number">Below</th><th scope="col" class="number">Log-odds</th>
        <th scope="col" class="number">Error</th>
        <th scope="col"><span class="hidden">Is it clear?</span></th></tr></thead>
      <tbody>${sides.flat().map((each) => html`<${WordLine} key=${each.word} each=${each} high=${high}
        low=${low} />`)}</tbody></table></div>`;
}
