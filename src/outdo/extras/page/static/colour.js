// A quantity as a colour. The levels have equal steps in lightness (tokens.css) and grow with the square root of the
// value: most tokens move only a little, and on a linear scale these moves would be invisible.
'use strict';

const LEVELS_OF_COLOUR = 8;

/** Return the scale of a quantity for a whole step, so that groups can be compared: it covers 98 % of the tokens. */
function scaleOf(step, name) {
  const quantity = quantityOf(name),
    values = step.quantity(name);
  const sizes = values
    ? values
        .filter((value) => Number.isFinite(value) && value !== 0)
        .map(Math.abs)
        .sort()
    : [];
  const largest = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.98))] : 1;
  return { ...quantity, values, most: roundUp(largest) };
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999);
}

/** Return the class of a value: n8…n1, none, p1…p8 for diverging scales, r1…r8 for rising ones; or "unknown". */
function levelOf(scale, value) {
  if (Number.isNaN(value)) return 'unknown';
  const level = Math.round(LEVELS_OF_COLOUR * Math.sqrt(Math.min(1, Math.abs(value) / scale.most)));
  if (level === 0) return '';
  return (scale.kind === 'rising' ? 'r' : value < 0 ? 'n' : 'p') + level;
}

const valueAt = (scale, level) => Math.sign(level) * scale.most * (level / LEVELS_OF_COLOUR) ** 2;

function shownValue(scale, value) {
  if (scale.shown) return figure(scale.shown(value), 2);
  return scale.kind === 'rising' ? figure(value, 2) : signed(value, 2);
}

function Legend({ scale }) {
  const first = scale.kind === 'rising' ? 0 : -LEVELS_OF_COLOUR;
  const levels = Array.from({ length: LEVELS_OF_COLOUR - first + 1 }, (_, i) => first + i);
  const labelled = (level) => level % 4 === 0;
  return html`<figure class="legend" data-test="legend">
    <figcaption><strong>${scale.title}</strong>${scale.unit && html` <span class="unit">${scale.unit}</span>`}
      <span class="quiet"> ${scale.what}</span></figcaption>
    <div class="keys">
      <div class="scale"><span class="end">${scale.ends[0]}</span>
        <ol>${levels.map(
          (level) =>
            html`<li><i class=${`swatch ${levelOf(scale, valueAt(scale, level))}`}></i>${
              labelled(level) && html`<b>${shownValue(scale, valueAt(scale, level))}</b>`
            }</li>`,
        )}</ol>
        <span class="end">${scale.ends[1]}</span></div>
      <ul class="states">${STATES.map(([state, words]) => html`<li>
        <span class=${`sample ${state}`}>token</span> ${words}</li>`)}
        <li><span class="sample unknown">token</span> not known</li></ul>
    </div>
  </figure>`;
}
