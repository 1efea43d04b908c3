// What an answer reads of its question: the words of the question, shaded by how much less likely the answer is with a
// word of another question in their place.
'use strict';

/** Return the largest loss of an answer in nats, for the scale of several readings of one question. */
const mostRead = (readings) =>
  Math.max(1, ...readings.flatMap((reading) => (reading ? reading[1].map(([, , nats]) => nats) : [])));

/** Show a question with its words shaded; `most` is the loss of the darkest. */
function ReadQuestion({ reading, most }) {
  const [text, words] = reading,
    scale = { kind: 'rising', most },
    parts = [];
  let at = 0;
  for (const [start, end, nats] of words) {
    parts.push(plainText(text.slice(at, start)));
    parts.push(html`<mark class=${`token ${levelOf(scale, Math.max(0, nats))}`} data-test="read-word" title=${
      `with another word here, the answer is ${figure(nats)} nats less likely`
    }>${plainText(text.slice(start, end))} <b>${figure(nats, 2)}</b></mark>`);
    at = end;
  }
  return html`<p class="read" data-test="read-question"><bdi>${parts}${plainText(text.slice(at))}</bdi></p>`;
}

const ReadLegend = () => html`<p class="quiet">Shaded: by how many nats the answer is less likely with the word of
  another question in this place. A word that answers do not depend on is not shaded.</p>`;
