// Search and filter: select the rollouts, and so the groups, to show.
'use strict';

const NO_FILTER = { text: '', where: 'all', verdict: '', least: '', most: '' };
const PLACES = { all: 'prompts and completions', prompt: 'prompts', completion: 'completions', token: 'single tokens' };

const lowered = (text) => text.toLowerCase();

/** Normalise a search text. It may contain the page's marks: they match the spaces and line breaks they stand for. */
const soughtText = (text) => lowered(text.replaceAll('·', ' ').replaceAll('⏎', '\n').replaceAll('→', '\t'));

function tokensWith(step, row, sought) {
  const found = [];
  for (let index = 0; index < row.length; index++)
    if (lowered(step.piece(step.token(row, index))[1]).includes(sought)) found.push(index);
  return found;
}

function textMatches(step, row, { where }, sought) {
  const inPrompt = () => lowered(step.groups[row.group].promptText).includes(sought);
  const inText = () => lowered(step.text(row.number)).includes(sought);
  if (where === 'prompt') return inPrompt();
  if (where === 'completion') return inText();
  if (where === 'token') return tokensWith(step, row, sought).length > 0;
  return inPrompt() || inText();
}

function rowMatches(step, row, filter, sought) {
  if (filter.verdict === 'right' && row.right !== true) return false;
  if (filter.verdict === 'wrong' && !(row.right === false && row.reward !== null)) return false;
  if (filter.verdict.startsWith('is:') && row.status !== filter.verdict.slice(3)) return false;
  if (filter.least !== '' && !(row.reward !== null && row.reward >= Number(filter.least))) return false;
  if (filter.most !== '' && !(row.reward !== null && row.reward <= Number(filter.most))) return false;
  return !sought || textMatches(step, row, filter, sought);
}

/** Return the numbers of the rows to show. */
function shownRows(step, filter) {
  const sought = soughtText(filter.text);
  return new Set(step.rows.filter((row) => rowMatches(step, row, filter, sought)).map((row) => row.number));
}

/** Return the tokens of a row that overlap a match of the search. */
function hitsOf(step, row, filter) {
  const sought = soughtText(filter.text);
  if (!sought || filter.where === 'prompt') return new Set();
  if (filter.where === 'token') return new Set(tokensWith(step, row, sought));
  const hits = new Set(),
    text = lowered(step.text(row.number));
  let index = 0,
    end = 0;
  for (let from = text.indexOf(sought); from >= 0; from = text.indexOf(sought, from + sought.length)) {
    for (; index < row.length; index++) {
      const size = step.piece(step.token(row, index))[1].length;
      if (end + size > from && end < from + sought.length) hits.add(index);
      if (end + size >= from + sought.length) break; // the next match may begin in this token
      end += size;
    }
  }
  return hits;
}

function Search({ step, filter, setFilter, shown }) {
  const change = (name) => (event) => setFilter({ ...filter, [name]: event.target.value });
  const words = [...new Set(step.rows.map((row) => row.status))].filter((verdict) => verdict !== 'ok');
  const groups = new Set(step.rows.filter((row) => shown.has(row.number)).map((row) => row.group)).size;
  const filtered = Object.keys(NO_FILTER).some((name) => name !== 'where' && filter[name] !== '');
  const of = (n) => (filtered ? `${n.toLocaleString('en-US')} of ` : '');
  const rollouts = of(shown.size) + count(step.rows.length, 'rollout');
  const found = `${rollouts} in ${of(groups)}${count(step.groups.length, 'group')}`;
  return html`<form class="search" role="search" aria-label="Search and filter rollouts"
    onSubmit=${(event) => event.preventDefault()}>
    <label class="control wide"><span>Search</span><input type="search" data-test="search" value=${filter.text}
      onInput=${change('text')} placeholder="text, or · for a space" spellcheck="false" /></label>
    <label class="control"><span>in</span><select value=${filter.where} onChange=${change('where')}>${Object.entries(
      PLACES,
    ).map(
      ([place, words_]) => html`<option value=${place} selected=${place === filter.where}>${words_}</option>`,
    )}</select></label>
    <label class="control"><span>Result</span><select data-test="filter-verdict" value=${filter.verdict}
      onChange=${change('verdict')}>
      <option value="">any</option>${step.rows.some((row) => row.right !== null) &&
        html`<option value="right">right</option><option value="wrong">wrong</option>`}
      ${words.map((verdict) => html`<option value=${`is:${verdict}`}>${verdict}</option>`)}</select></label>
    <label class="control"><span>Reward from</span><input type="number" step="any" data-test="filter-reward-min"
      value=${filter.least} onInput=${change('least')} /></label>
    <label class="control"><span>to</span><input type="number" step="any" data-test="filter-reward-max"
      value=${filter.most} onInput=${change('most')} /></label>
    <output data-test="search-count">${found}</output>
    ${filtered && html`<button type="button" class="plain" onClick=${() => setFilter(NO_FILTER)}>Clear</button>`}
  </form>`;
}
