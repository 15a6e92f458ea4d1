const os = require('os');

exports.handle = () => [
  os.cpus().length,
  os.availableParallelism(),
  os.totalmem(),
  os.freemem() > 0 && os.freemem() < os.totalmem(),
];
