exports.handle = () => 'main';
