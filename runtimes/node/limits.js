// What node's os module says about the machine, of the sandbox instead: the
// kernel's own answers are about the host (docs/ordinary-software.md). The
// limits come with the function, so that they are read when they are asked for.
'use strict';

const os = require('os');

const host = { availableParallelism: os.availableParallelism, totalmem: os.totalmem, freemem: os.freemem };
const limit = (name) => Number(process.env[name]) || 0;

os.availableParallelism = () => limit('FRE_CPUS') || host.availableParallelism();
// os.cpus() is empty without /proc/stat; what people ask of it is its length.
os.cpus = () => Array.from({ length: os.availableParallelism() }, () => (
  { model: '', speed: 0, times: { user: 0, nice: 0, sys: 0, idle: 0, irq: 0 } }));
os.totalmem = () => limit('FRE_MEMORY_BYTES') || host.totalmem();
os.freemem = () => {
  const total = limit('FRE_MEMORY_BYTES');
  return total ? Math.max(0, total - process.memoryUsage.rss()) : host.freemem();
};
