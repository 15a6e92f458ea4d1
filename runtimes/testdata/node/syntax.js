exports.handle = async (event => 1;
