'use strict';

exports.handle = () => undefined;
