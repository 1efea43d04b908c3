// Make text of a model visible and harmless: a mark replaces each character that hides, moves or reorders others.
// The page puts it only into text nodes, so that markup in it stays text.
'use strict';

const NAMED = {
  ' ': '·',
  '\n': '⏎',
  '\t': '→',
  '\r': '␍',
  '\u007f': '␡',
  '\u00a0': '⍽',
  '\u00ad': '⟨SHY⟩',
  '\u061c': '⟨ALM⟩',
  '\u200b': '⟨ZWSP⟩',
  '\u200c': '⟨ZWNJ⟩',
  '\u200d': '⟨ZWJ⟩',
  '\u200e': '⟨LRM⟩',
  '\u200f': '⟨RLM⟩',
  '\u2028': '⟨LS⟩',
  '\u2029': '⟨PS⟩',
  '\u202a': '⟨LRE⟩',
  '\u202b': '⟨RLE⟩',
  '\u202c': '⟨PDF⟩',
  '\u202d': '⟨LRO⟩',
  '\u202e': '⟨RLO⟩',
  '\u2060': '⟨WJ⟩',
  '\u2066': '⟨LRI⟩',
  '\u2067': '⟨RLI⟩',
  '\u2068': '⟨FSI⟩',
  '\u2069': '⟨PDI⟩',
  '\ufeff': '⟨BOM⟩',
};
const CONTROLS = '\\u0000-\\u001f\\u007f-\\u00a0\\u00ad';
const INVISIBLE = '\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}';
const HIDDEN = new RegExp(`[${CONTROLS}${INVISIBLE}]|\\p{Cs}`, 'gu');
const HIDDEN_OR_SPACE = new RegExp(`${HIDDEN.source}| `, 'gu');

function mark(character) {
  if (NAMED[character]) return NAMED[character];
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟨${code.toString(16).toUpperCase().padStart(2, '0')}⟩`;
}

const spacedHex = (hex) => hex.match(/../g)?.join(' ') ?? hex;

/** Return a token as shown. A line break stays after its mark, so that lines break where the model broke them. */
function tokenText(piece, hex) {
  if (piece === '') return hex ? spacedHex(hex) : '∅';
  if (hex && piece.includes('\ufffd')) return `⟨${spacedHex(hex)}⟩`;
  const shown = piece.replace(HIDDEN_OR_SPACE, (character) => (character === '\n' ? '⏎\n' : mark(character)));
  return /^\p{M}/u.test(shown) ? `◌${shown}` : shown;
}

/** Return a token in one line, for lists. */
const tokenLine = (piece, hex) => tokenText(piece, hex).replaceAll('\n', '');

/** Return running text, such as a prompt: spaces and line breaks stay, marks replace hidden characters. */
const plainText = (text) =>
  text.replace(HIDDEN, (character) => (character === '\n' || character === '\t' ? character : mark(character)));

/** Return running text in one line, shortened to `length` characters. */
function oneLine(text, length = 160) {
  const line = plainText(text.slice(0, length * 4))
    .replace(/\s+/g, ' ')
    .trim();
  return line.length > length ? `${line.slice(0, length)}…` : line;
}
