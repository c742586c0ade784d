// build.mjs SOURCE.js WIT OUT.wasm: makes a component of a provider in JavaScript.

import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [sourcePath, witPath, out] = process.argv.slice(2);
const { component } = await componentize({
  sourcePath,
  witPath,
  worldName: 'plugin',
  // Random and clocks stay: without them Math.random() and Date.now() answer what they did at build time, for ever.
  disableFeatures: ['http', 'fetch-event'],
});
await writeFile(out, component);
