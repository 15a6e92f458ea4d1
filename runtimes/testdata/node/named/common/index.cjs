exports.handle = () => 'index.cjs';
