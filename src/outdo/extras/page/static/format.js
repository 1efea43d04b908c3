// Format numbers. Values have four significant digits (13 bits of each mantissa), so none shows more.
'use strict';

const { html, render, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback } = htmPreact;

const UNKNOWN = '–';
const MINUS = '−';

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** Format a number with at most `digits` significant digits and a true minus sign. */
function figure(value, digits = 3) {
  if (!known(value)) return UNKNOWN;
  if (!Number.isFinite(value)) return value > 0 ? '∞' : `${MINUS}∞`;
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e5 || size < 1e-4) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split('e');
    return `${mantissa}e${Number(exponent)}`.replaceAll('-', MINUS);
  }
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return Number(value.toFixed(decimals))
    .toLocaleString('en-US', { maximumFractionDigits: decimals })
    .replace('-', MINUS);
}

/** Format a number of a token: always with four digits, so that a column of them lines up. */
function fourDigits(value) {
  const size = Math.abs(value);
  return known(value) && size >= 1e-3 && size < 1e4 ? value.toPrecision(4).replace('-', MINUS) : figure(value, 4);
}

const fourDigitsSigned = (value) => (known(value) && value > 0 ? '+' : '') + fourDigits(value);

/** Format a number with its sign, for values that can be positive or negative. */
const signed = (value, digits = 3) => (known(value) && value > 0 ? '+' : '') + figure(value, digits);

/** Format a share as a percentage. */
function percent(share) {
  if (!known(share)) return UNKNOWN;
  const hundredths = share * 100;
  return `${figure(hundredths, hundredths >= 99 && hundredths < 100 ? 4 : hundredths < 10 ? 2 : 3)}\u00a0%`;
}

/** Format two shares as percentages with three digits, or four if that shows a difference; two more above 99 %. */
function percentages(from, to) {
  const both = (digits) =>
    [from, to].map((share) => figure(share * 100, share >= 0.99 && share < 1 ? digits + 2 : digits));
  const [short, long] = [both(3), both(4)];
  return `${(short[0] === short[1] ? long : short).join(' → ')}\u00a0%`;
}

/** Format the probability that a log-probability stands for; above 99 % with two digits of what is missing to 100 %. */
function probability(logprob) {
  const missing = -100 * Math.expm1(logprob);
  if (!known(logprob) || missing <= 0 || missing >= 1) return known(logprob) ? percent(Math.exp(logprob)) : UNKNOWN;
  const decimals = Math.min(12, 1 - Math.floor(Math.log10(missing)));
  return `${Number((100 - missing).toFixed(decimals))}\u00a0%`;
}

const count = (n, one, many = `${one}s`) => `${n.toLocaleString('en-US')} ${n === 1 ? one : many}`;

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

/** Make a value with watchers, for state that changes too often to redraw the whole page. */
function watched(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const watcher of watchers) watcher(next);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}
