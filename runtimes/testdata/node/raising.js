function fail() { throw new RangeError('at import'); }
fail();
