// "Where training happened": the contexts with most of the leverage of the whole run.
'use strict';

/** Say what became of a context: when its probability passed the middle of its way, and whether something is left. */
function courseOf({ steps, up, first, last, passed }) {
  if (steps === 1) return `only in step ${passed}`;
  const [from, to] = [first, last].map((share) => share.toFixed(2));
  if (from === to) return 'did not change';
  const followed = last > first === up;
  if (!followed) return 'moved against its pushes';
  const left = up ? last < 0.9 : last > 0.1;
  return `half of it by step ${passed}${left ? '; not finished' : ''}`;
}

function Context({ context, most }) {
  const { before, start, token, steps, up, leverage, tokens, first, last } = context;
  return html`<tr><th scope="row"><span class="context">
      <bdi class="quiet">${start ? '' : '…'}${before && tokenLine(before)}</bdi>
      ${' '}<mark class=${`token ${up ? 'p5' : 'n5'}`}>${tokenLine(token)}</mark></span></th>
    <td><span class=${`size ${up ? 'up' : 'down'}`}>
      <i style=${{ width: `${(100 * leverage) / most}%` }}></i></span></td>
    <td class="number">${percent(leverage)}</td><td class="number">${tokens.toLocaleString('en-US')}</td>
    <td>${up ? 'up' : 'down'}</td><td class="number">${steps === 1 ? percent(first) : percentages(first, last)}</td>
    <td>${courseOf(context)}</td></tr>`;
}

function Where({ run, several }) {
  const found = run.leverage;
  if (!found?.contexts.length) return null;
  const few = found.contexts.slice(0, 8),
    most = few[0].leverage,
    together = few.reduce((sum, { leverage }) => sum + leverage, 0),
    share = few.reduce((sum, { tokens }) => sum + tokens, 0) / found.tokens;
  return html`<section class="where-trained" data-test="where" aria-labelledby="where-title">
    <h3 id="where-title">Where training happened${several && html`: <bdi>${plainText(run.name)}</bdi>`}</h3>
    <p class="note">Half of all leverage is on <b>${percent(found.half)}</b> of the tokens. These
      ${' '}${count(few.length, 'context')} have <b>${percent(together)}</b> of the leverage and ${percent(share)} of
      the tokens. <span class="quiet">Read: ${count(found.tokens, 'trained token')} in ${count(found.steps, 'step')}.
      The leverage of a token is how strongly it was pushed, times how far its probability could move.</span></p>
    <div class="scroller" tabindex="0" role="region" aria-label="Contexts with most leverage"><table class="static">
      <thead><tr><th scope="col">Token, after</th>
        <th scope="col"><span class="hidden">Leverage as a bar</span></th><th scope="col" class="number">Leverage</th>
        <th scope="col" class="number">Tokens</th><th scope="col">Pushed</th>
        <th scope="col" class="number">Probability</th><th scope="col">Change</th></tr></thead>
      <tbody>${few.map((context) => html`<${Context} context=${context} most=${most} />`)}</tbody></table></div>
    </section>`;
}
