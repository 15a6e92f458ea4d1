'use strict';

exports.handle = () => String(process.hrtime.bigint());
