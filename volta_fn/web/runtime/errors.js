// What goes wrong, in words for the person in front of the page.

/** An error whose message is meant to be read on the page. */
export class PageError extends Error {}

export const NO_WEBGPU =
  'This browser has no WebGPU. Chrome and Edge 113, Safari 26 and Firefox 141 have it, or later ones; on Linux it may need a setting.';
export const NO_ADAPTER =
  'This browser has WebGPU, but found no GPU that it can use. Hardware acceleration may be switched off in its settings.';
export const LOST = 'The GPU was reset or taken away, and what was computed is lost. Reload the page to start again.';
export const OUT_OF_MEMORY = 'The GPU has not enough memory for this page. Close other pages, and reload this one.';

/** Says which limits of a GPU are too low for the page. */
export function tooLow(limits) {
  const rows = limits.map(({name, needed, actual}) => `${name} is ${actual}, and the page needs ${needed}`);
  return `This GPU, or this browser's use of it, is too small for the page: ${rows.join('; ')}.`;
}
