exports.handle = () => 'cjs';
